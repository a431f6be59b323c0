"""Every operator that is built in, as a method of networks. Written by `make operators`; not to be edited."""

from collections.abc import Mapping, Sequence
from typing import Any

from pelton.ir.graph import Value
from pelton.ir.op import Op
from pelton.ir.types import DType

from .tensor import NetworkTensor, Operand

class Operators:
    """Methods that apply one operator: operands first, attributes as keywords. `name` names the layer."""

    def apply(
        self,
        op: Op | str,
        operands: Sequence[Operand],
        attrs: Mapping[str, Any] | None = ...,
        name: str = ...,
    ) -> tuple[NetworkTensor, ...]: ...
    def tensor_of(self, operand: Operand) -> NetworkTensor: ...
    def wrap(self, value: Value) -> NetworkTensor: ...
    def constant(self, array: Any, name: str = ..., dtype: str | DType | None = ...) -> NetworkTensor: ...
    def __getattr__(self, name: str) -> Any:
        """The operator of a plugin, as a method."""

    def abs(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """abs, element by element."""
    def acos(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """acos, element by element."""
    def acosh(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """acosh, element by element."""
    def add(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """add, element by element."""
    def arg_max(self, x: Operand, *, axis: Any, keepdims: bool = True, select_last_index: bool = False, name: str = "") -> NetworkTensor:
        """The index of the largest element along an axis; the first one (or the last one) of equals."""
    def arg_min(self, x: Operand, *, axis: Any, keepdims: bool = True, select_last_index: bool = False, name: str = "") -> NetworkTensor:
        """The index of the smallest element along an axis; the first one (or the last one) of
        equals."""
    def asin(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """asin, element by element."""
    def asinh(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """asinh, element by element."""
    def atan(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """atan, element by element."""
    def atanh(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """atanh, element by element."""
    def bit_cast(self, x: Operand, *, to: Any, name: str = "") -> NetworkTensor:
        """The bits of x as another element type of the same width."""
    def bitwise_and(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """bitwise_and, element by element."""
    def bitwise_not(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """bitwise_not, element by element."""
    def bitwise_or(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """bitwise_or, element by element."""
    def bitwise_xor(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """bitwise_xor, element by element."""
    def blend(self, x: Operand, indices: Operand, weights: Operand, *, axis: Any, batch_dims: int = 0, name: str = "") -> NetworkTensor:
        """Y[b…, m…, p…, r…] = Σₜ weights[b…, p…, t] · X[b…, m…, indices[b…, p…, t], r…], the axis
        replaced by points p. A weight of 0 contributes nothing, whatever the element."""
    def byte_sum(self, x: Operand, *, axes: Any, keepdims: bool = True, name: str = "") -> NetworkTensor:
        """Y = Σ X over the axes in i32, X of bytes."""
    def cache_attention(self, q: Operand, k: Operand, key_scale: Operand, v: Operand, value_scale: Operand, mask: Operand, *, scale: Any, causal: bool = False, name: str = "") -> NetworkTensor:
        """Attention over keys and values as a cache stores them, in f16, bf16 or i8: K · key_scale and
        V · value_scale. Both have numbers of one type. A scale is of all numbers, or of rows: it
        broadcasts to [..., keys, 1]."""
    def cache_write(self, cache: Operand, rows: Operand, begin: Operand, end: Operand, *, length: Any, keep: bool = False, name: str = "") -> NetworkTensor:
        """The cache with rows written at the positions begin to end − 1 of each sequence. The cache is
        [batch, heads, capacity, depth], the rows are [batch, heads, rows, depth], the result is [batch,
        heads, length, depth]; begin and end are numbers for each sequence, limited to what there is.
        Positions from `end` on are 0, or, with `keep`, as they were."""
    def ceil(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """ceil, element by element."""
    def celu(self, x: Operand, *, alpha: float = 1.0, name: str = "") -> NetworkTensor:
        """celu, element by element."""
    def codebook_linear(self, x: Operand, w: Operand, scale: Operand, *, block: Any, table: Any, name: str = "") -> NetworkTensor:
        """y[…, n] = Σₖ x[…, k] · table[w[n, k]] · scale[n, k / block], a product with weights of four
        bits that number the entries of a table of 16, as those of NF4 and FP4. w holds N rows of K
        numbers, the first one of each byte in its lowest bits; scale is [N, blocks], one for every
        `block` elements of a row."""
    def conv_transpose(self, x: Operand, w: Operand, b: Operand, *, strides: Any, pads: Any, dilations: Any, group: int = 1, output_padding: Any, name: str = "") -> NetworkTensor:
        """Y[n, m, i·stride + k·dilation − pad] += X[n, c, i] · W[c, m, k], plus B[m]. This is the
        gradient of a convolution with respect to its input."""
    def copy(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """y = x, copied to another layout."""
    def cos(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """cos, element by element."""
    def cosh(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """cosh, element by element."""
    def coupled(self, r: Operand, *, classes: Any, name: str = "") -> NetworkTensor:
        """P[row, class]: the probabilities that fit best to R[row, pair]. R is the probability of the
        first class of each pair (0, 1), (0, 2), …, (1, 2), … against the second. Wu, Lin and Weng,
        Probability Estimates for Multi-class Classification by Pairwise Coupling (2004), the second
        approach, as in libsvm: rounds over all classes until no error is larger than 0.005 / classes.
        That is far from exact, so the number of rounds is part of the definition."""
    def cumprod(self, x: Operand, *, axis: Any, exclusive: bool = False, reverse: bool = False, name: str = "") -> NetworkTensor:
        """Yᵢ = Π_{j ≤ i} Xⱼ along an axis; `exclusive` leaves out j = i, `reverse` goes from the
        end."""
    def cumsum(self, x: Operand, *, axis: Any, exclusive: bool = False, reverse: bool = False, name: str = "") -> NetworkTensor:
        """Yᵢ = Σ_{j ≤ i} Xⱼ along an axis; `exclusive` leaves out j = i, `reverse` sums from the
        end."""
    def deform_convolution(self, x: Operand, w: Operand, offset: Operand, b: Operand, mask: Operand, *, strides: Any, pads: Any, dilations: Any, group: int = 1, offset_group: int = 1, name: str = "") -> NetworkTensor:
        """A convolution each of whose taps reads X at an offset of its own, between the elements (zeros
        outside), and times its mask."""
    def delta_rule(self, q: Operand, k: Operand, v: Operand, decay: Operand, beta: Operand, state: Operand, sequences: Operand, *, retrieve: bool = True, name: str = "") -> tuple[NetworkTensor, ...]:
        """For each token of a sequence in turn, S = decay · S, d = beta · (V − KᵀS), S = S + K dᵀ and Y
        = Q S. Q is [tokens, heads, queries, keys], K [tokens, heads, keys], V [tokens, heads, values];
        decay is one factor for each key or one for all, beta is [tokens, heads, 1]; states are
        [sequences, heads, keys, values]. `sequences` says which one each token is of, in order. Without
        `retrieve`, d = beta · V. The results are Y, the states behind the last tokens, and d of all
        tokens."""
    def depth_to_space(self, x: Operand, *, block: Any, mode: str = 'DCR', name: str = "") -> NetworkTensor:
        """Channels become blocks of space: mode DCR takes them depth first, CRD column and row
        first."""
    def dequantize(self, x: Operand, scale: Operand, zero: Operand = ..., *, axis: int = 0, block: int = 0, name: str = "") -> NetworkTensor:
        """(x − zero) · scale, in the type of the scale; narrow ones, which do not hold all integers,
        only in the end. Scale and zero point are one number each, one per element of `axis`, or one for
        every `block` elements along it; without a zero point it is 0."""
    def det(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """Y[…] = |X[…, :, :]|, the determinants of matrices."""
    def detections(self, boxes: Operand, scores: Operand, *, threshold: Any, overlap: Any, background: int = -1, top_k: int = -1, keep: int = -1, eta: float = 1.0, name: str = "") -> NetworkTensor:
        """Rows [1, 1, batch · keep, 7] of (image, label, score, x₁, y₁, x₂, y₂), by labels, the best
        first. boxes [batch, 1 or classes, n, 4] are corners, scores [batch, classes, n]. Of each class
        but the `background`, the `top_k` boxes that score above the threshold are taken, and of these,
        those that overlap with no better one by more than `overlap` (intersection over union); of all
        classes of an image, the best `keep`. −1 is no limit. Rows without a box are at the end of an
        image's, with image −1 and zeros. As DetectionOutput of SSD (Liu et al. 2016)."""
    def div(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """a / b; integers divide towards zero."""
    def elu(self, x: Operand, *, alpha: float = 1.0, name: str = "") -> NetworkTensor:
        """elu, element by element."""
    def equal(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """equal, element by element."""
    def erf(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """erf, element by element."""
    def exp(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """exp, element by element."""
    def floor(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """floor, element by element."""
    def fmod(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """The remainder with the sign of the dividend (C's)."""
    def gather_elements(self, x: Operand, indices: Operand, *, axis: Any, name: str = "") -> NetworkTensor:
        """Y[i, j, …] = X[i, indices[i, j, …], …], the index replaced along an axis."""
    def gather_nd(self, x: Operand, indices: Operand, *, batch_dims: int = 0, name: str = "") -> NetworkTensor:
        """Y[b…, i…] = X[b…, indices[b…, i…, :], …]: the last axis of the indices is an index tuple."""
    def gelu(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """gelu, element by element."""
    def gelu_tanh(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """gelu_tanh, element by element."""
    def greater(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """greater, element by element."""
    def greater_equal(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """greater_equal, element by element."""
    def grid_sample(self, x: Operand, grid: Operand, *, mode: str = 'linear', padding: str = 'zeros', align_corners: bool = False, name: str = "") -> NetworkTensor:
        """Y[n, c, p…] = X[n, c] at grid[n, p…], whose last axis has a coordinate per spatial axis, the
        last one first. Coordinates are −1 at the start of an axis, 1 at its end."""
    def gru_steps(self, gates: Operand, r: Operand, b: Operand, initial_h: Operand, *, direction: str = 'forward', clip: float = 0.0, linear_before_reset: bool = False, name: str = "") -> tuple[NetworkTensor, ...]:
        """gru, given X·Wᵀ + b of all time steps and directions as gates [time, batch, direction · (z,
        r, n)]; b is the recurrent bias of n; sigmoid and tanh."""
    def hard_sigmoid(self, x: Operand, *, alpha: float = 0.2, beta: float = 0.5, name: str = "") -> NetworkTensor:
        """hard_sigmoid, element by element."""
    def hard_swish(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """hard_swish, element by element."""
    def inverse(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """Y[…, :, :] = X[…, :, :]⁻¹; NaN where a matrix has none."""
    def is_inf(self, x: Operand, *, positive: bool = True, negative: bool = True, name: str = "") -> NetworkTensor:
        """Whether x is infinite, of the signs asked for."""
    def is_nan(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """is_nan, element by element."""
    def leaky_relu(self, x: Operand, *, alpha: float = 0.01, name: str = "") -> NetworkTensor:
        """leaky_relu, element by element."""
    def less(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """less, element by element."""
    def less_equal(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """less_equal, element by element."""
    def log(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """log, element by element."""
    def logical_and(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """logical_and, element by element."""
    def logical_not(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """logical_not, element by element."""
    def logical_or(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """logical_or, element by element."""
    def logical_xor(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """logical_xor, element by element."""
    def lookup(self, x: Operand, keys: Operand, *, name: str = "") -> NetworkTensor:
        """Y = the index of each string of X among the keys (the last of equal ones), −1 if it is none
        of them."""
    def lrn(self, x: Operand, *, size: Any, alpha: Any, beta: Any, bias: Any, name: str = "") -> NetworkTensor:
        """Y[n, c] = X[n, c] / (bias + alpha / size · Σ X[n, c′]²)^beta, c′ in the `size` channels
        around c."""
    def lstm_steps(self, gates: Operand, r: Operand, initial_h: Operand, initial_c: Operand, p: Operand, *, direction: str = 'forward', clip: float = 0.0, input_forget: bool = False, round_state: bool = False, name: str = "") -> tuple[NetworkTensor, ...]:
        """lstm, given X·Wᵀ + b of all time steps and directions as gates [time, batch, direction · (i,
        o, f, c)]; sigmoid and tanh. round_state: the products read each row of the state as
        DynamicQuantizeLinear rounds it."""
    def matmul(self, a: Operand, b: Operand, *, accumulate: Any = None, to: Any = None, a_zero: int = 0, b_zero: int = 0, name: str = "") -> NetworkTensor:
        """C[…, m, n] = Σₖ (A[…, m, k] − a_zero) · (B[…, k, n] − b_zero), summed in the type
        `accumulate`, converted to the type `to`. Only sums of integers that name their type have zero
        points; these are numbers of the operands' types."""
    def max_pool_places(self, x: Operand, *, kernel: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool = False, column_major: bool = False, name: str = "") -> NetworkTensor:
        """The index into the elements of X of the largest element of each window (the first of
        equals)."""
    def max_roi_pool(self, x: Operand, rois: Operand, batch: Operand, *, height: Any, width: Any, scale: float = 1.0, name: str = "") -> NetworkTensor:
        """Y[r, c, i, j] = the largest element of X[batch[r], c] that a bin touches, 0 where it touches
        none; rois are x₁, y₁, x₂, y₂, rounded, ends included."""
    def maximum(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """The larger one; NaN where either is NaN."""
    def minimum(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """The smaller one; NaN where either is NaN."""
    def mish(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """mish, element by element."""
    def mod(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """The remainder with the sign of the divisor (Python's)."""
    def mul(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """mul, element by element."""
    def multiclass_nms(self, boxes: Operand, scores: Operand, *, keep: Any, score: float = 0.0, overlap: float = 0.5, top_k: int = 0, background: int = -1, per_class: bool = True, name: str = "") -> NetworkTensor:
        """Y[b, i] = x₁, y₁, x₂, y₂, score and class of the box that is best after i others; with none
        left, 0 and class −1. boxes [batch, n, 4] are x₁, y₁, x₂, y₂, scores [batch, class, n]. Of each
        class but `background`, the boxes with scores above `score` are taken from the best on, the
        first `top_k` of them (0: all), unless the intersection with a box that was taken is more than
        `overlap` of the union; of all taken, the best `keep` are left. Of equal scores the lower class
        is first, then the lower box. per_class: boxes of different classes leave each other alone;
        without it a box has its best class alone, and of equal scores the lower box is first."""
    def neg(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """neg, element by element."""
    def pow(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """pow, element by element."""
    def prelu(self, x: Operand, slope: Operand, *, name: str = "") -> NetworkTensor:
        """prelu, element by element."""
    def quantize(self, x: Operand, scale: Operand, zero: Operand = ..., *, to: Any, axis: int = 0, block: int = 0, saturate: bool = True, name: str = "") -> NetworkTensor:
        """x / scale rounded half to even, + zero, saturated, as `to`. Floats round as a cast does, and
        their zero is 0. Scale and zero point as those of `dequantize`."""
    def quantized_gather(self, w: Operand, indices: Operand, scale: Operand, zero: Operand = ..., *, block: Any, bits: Any, length: Any, round_scales: bool = False, name: str = "") -> NetworkTensor:
        """y[i…, k] = (w[indices[i…], k] − zero[…, k / block]) · scale[…, k / block], rows of a table of
        few bits, which stays stored as it is; negative indices count from the end. w, scale and zero
        are those of `quantized_linear`, of rows of `length` numbers. round_scales: kernels may round
        scales to f16, as those of a product with the same weights do."""
    def quantized_linear(self, x: Operand, w: Operand, scale: Operand, zero: Operand = ..., *, block: Any, bits: Any, round_rows: bool = False, name: str = "") -> NetworkTensor:
        """y[…, n] = Σₖ x[…, k] · (w[n, k] − zero[n, k / block]) · scale[n, k / block], a product with
        weights of few bits, which stay stored as they are. w holds N rows of K unsigned numbers of 2, 4
        or 8 bits, the first one of each byte in its lowest bits. scale and zero are [N, blocks], one
        for every `block` elements of a row; without zero it is half of the numbers' range. zero holds
        bytes, or floats for weights with a minimum of their own. round_rows: kernels may round x to 8
        bits, each 32 elements of a row (or 16) by a scale of their own."""
    def reciprocal(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """reciprocal, element by element."""
    def relu(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """relu, element by element."""
    def rnn_steps(self, gates: Operand, r: Operand, initial_h: Operand, *, direction: str = 'forward', clip: float = 0.0, activation: str = 'Tanh', name: str = "") -> tuple[NetworkTensor, ...]:
        """rnn, given X·Wᵀ + b of all time steps and directions as gates [time, batch, direction ·
        unit]; activation Tanh or Relu."""
    def roi_align(self, x: Operand, rois: Operand, batch: Operand, *, height: Any, width: Any, samples: Any, scale: float = 1.0, mode: str = 'avg', half_pixel: bool = True, name: str = "") -> NetworkTensor:
        """Y[r, c, i, j] = the mean (or maximum) of samples² points of X[batch[r], c], evenly spread
        over a bin. Points are interpolated bilinearly, and 0 outside of X; rois are x₁, y₁, x₂, y₂.
        samples: points per axis of a bin; 0: as many as the bin is long, rounded up."""
    def rotary(self, x: Operand, cos: Operand, sin: Operand, *, interleaved: bool = False, name: str = "") -> NetworkTensor:
        """Y = X with pairs (a, b) along its last axis rotated: (a · cos − b · sin, b · cos + a · sin).
        Su et al. 2021, RoFormer. There are as many pairs as elements of cos and sin along that axis:
        (i, i + pairs), or (2i, 2i + 1) if `interleaved`. Elements behind them are unchanged."""
    def round(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """The nearest integer, halves to the even one."""
    def scatter_elements(self, x: Operand, indices: Operand, updates: Operand, *, axis: Any, reduction: str = 'none', name: str = "") -> NetworkTensor:
        """X with X[i, indices[i, j, …], …] replaced by (or combined with) updates[i, j, …]."""
    def scatter_nd(self, x: Operand, indices: Operand, updates: Operand, *, reduction: str = 'none', name: str = "") -> NetworkTensor:
        """X with X[indices[i…, :], …] replaced by (or combined with) updates[i…, …]."""
    def selu(self, x: Operand, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323, name: str = "") -> NetworkTensor:
        """selu, element by element."""
    def shift_left(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """a · 2ᵇ, modulo the width; zero for shifts of the width and beyond."""
    def shift_right(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """a / 2ᵇ rounded down; zero for shifts of the width and beyond."""
    def sigmoid(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """sigmoid, element by element."""
    def sign(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """sign, element by element."""
    def sin(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """sin, element by element."""
    def sinh(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """sinh, element by element."""
    def sizes(self, *, values: Any, shape: Any, name: str = "") -> NetworkTensor:
        """Sizes as an i64 tensor of a known shape: its elements in row-major order."""
    def slice(self, x: Operand, *, starts: Any, ends: Any, axes: Any, steps: Any, name: str = "") -> NetworkTensor:
        """Y[i] = X[start + i · step] along each axis, up to before `end`; an end of −1 includes element
        0."""
    def softplus(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """log(1 + eˣ), without overflow for large x."""
    def softsign(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """softsign, element by element."""
    def space_to_depth(self, x: Operand, *, block: Any, name: str = "") -> NetworkTensor:
        """Blocks of space become channels."""
    def sqrt(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """sqrt, element by element."""
    def sub(self, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """sub, element by element."""
    def swish(self, x: Operand, *, alpha: float = 1.0, name: str = "") -> NetworkTensor:
        """swish, element by element."""
    def tan(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """tan, element by element."""
    def tanh(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """tanh, element by element."""
    def thresholded_relu(self, x: Operand, *, alpha: float = 1.0, name: str = "") -> NetworkTensor:
        """thresholded_relu, element by element."""
    def trees(self, x: Operand, threshold: Operand, feature: Operand, child: Operand, depth: Operand, leaf: Operand, start: Operand, target: Operand, weight: Operand, *, targets: Any, parts: int = 1, join: str = 'sum', name: str = "") -> NetworkTensor:
        """Y[part, row, target] = the weights for a target of the leaves that a row of X reaches,
        combined by `join`. A part is a run of ⌈trees / parts⌉ trees. Nodes have slots, the roots of the
        trees first; `depth` is per tree. From a slot, a row goes on to `child` if its feature is at
        most the threshold, else to the slot after that one. A feature is ~f if NaN goes to `child`. A
        leaf's threshold is NaN and its child the slot before its own, so that it leads to itself. Its
        targets and weights are those from start[leaf] to start[leaf + 1]."""
    def trilu(self, x: Operand, *, k: int = 0, upper: bool = True, name: str = "") -> NetworkTensor:
        """X with zeros below (upper) or above (lower) its k-th diagonal."""
    def where(self, condition: Operand, a: Operand, b: Operand, *, name: str = "") -> NetworkTensor:
        """where, element by element."""
