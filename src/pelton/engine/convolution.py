"""A convolution by cuDNN."""

from __future__ import annotations

from typing import ClassVar

from pelton.record import record

from .work import COUNT, ENDS, SAID, TYPES, outside, reach, values


@record(frozen=True)
class ConvolutionDescriptor:
    """Y = end(X ∗ W + Z + bias) with ONNX's Conv, accumulated in f32; feature maps of h×w pixels, channels innermost.
    All fields are whole numbers: they are the dims of a step.

    version, choice: as in `MatmulDescriptor`. kind: element type of all operands. end: of `ENDS`, without GELU. bias: 1
    if there is one, of `out` contiguous elements; added: 1 if there is a Z, of the shape of Y. W is [out, kernel_h,
    kernel_w, c / group], contiguous but for the stride `w_step` of its first axis. x_n, x_h, x_w: strides of X along
    images, rows and columns; y_… and z_… likewise; all in elements. The operands of a step are X, W, bias, Z and Y,
    without the absent ones.
    """

    symbol: ClassVar[str] = "cudnn"

    version: int
    choice: int
    kind: int
    end: int
    bias: int
    added: int
    n: int
    c: int
    h: int
    w: int
    out: int
    group: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    top: int
    left: int
    bottom: int
    right: int
    w_step: int
    x_n: int
    x_h: int
    x_w: int
    y_n: int
    y_h: int
    y_w: int
    z_n: int
    z_h: int
    z_w: int

    def dims(self) -> tuple[int, ...]:
        return values(self)

    @property
    def space(self) -> tuple[int, int]:
        """Rows and columns of Y."""
        return (
            (self.h + self.top + self.bottom - self.dilation_h * (self.kernel_h - 1) - 1) // self.stride_h + 1,
            (self.w + self.left + self.right - self.dilation_w * (self.kernel_w - 1) - 1) // self.stride_w + 1,
        )

    def operands(self) -> list[tuple[str, int]]:
        """Returns, per operand, its element type, and elements from its first to one past its last."""
        filters = self.kernel_h * self.kernel_w * (self.c // self.group)
        made = (self.n, *self.space, self.out)
        lengths = [
            reach((self.n, self.h, self.w, self.c), (self.x_n, self.x_h, self.x_w, 1)),
            reach((self.out, filters), (self.w_step, 1)),
        ]
        lengths += [self.out] if self.bias else []
        lengths += [reach(made, (self.z_n, self.z_h, self.z_w, 1))] if self.added else []
        return [(TYPES[self.kind], n) for n in (*lengths, reach(made, (self.y_n, self.y_h, self.y_w, 1)))]

    def rejection(self) -> str | None:
        """Returns the reason why no convolution has these numbers; None if they are valid."""
        counts = (
            "n",
            "c",
            "h",
            "w",
            "out",
            "group",
            "kernel_h",
            "kernel_w",
            "stride_h",
            "stride_w",
            "dilation_h",
            "dilation_w",
        )
        limits = SAID | {
            "end": (0, ENDS.index("relu")),
            **dict.fromkeys(counts, COUNT),
            **dict.fromkeys(("top", "left", "bottom", "right"), (0, COUNT[1])),
        }
        if reason := outside(self, limits):
            return reason
        if self.c % self.group or self.out % self.group:
            return f"{self.c} channels and {self.out} outputs are of {self.group} groups"
        if min(self.space) < 1:
            return "no window fits"
        if self.w_step < self.kernel_h * self.kernel_w * (self.c // self.group):
            return f"filters begin every {self.w_step} elements, and have more"
        for name, (rows, columns), length in (
            ("x", (self.h, self.w), self.c),
            ("y", self.space, self.out),
            ("z", self.space, self.out),
        ):
            if name == "z" and not self.added:
                continue
            for axis, count in (("w", columns), ("h", rows), ("n", self.n)):
                step = getattr(self, f"{name}_{axis}")
                if count > 1 and step < length:
                    return f"what {name} has along {axis} begins every {step} elements, and is {length} long"
                length += (count - 1) * step
        return None

    def __str__(self) -> str:
        return (
            f"a convolution of {self.n}×{self.c}×{self.h}×{self.w} by {self.out} filters of"
            f" {self.kernel_h}×{self.kernel_w}"
        )
