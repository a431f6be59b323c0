"""Run by the interpreter that has PaddlePaddle: from_paddle.py TARGET MODEL [PARAMETERS] writes an inference model
(.pdmodel or .json, and .pdiparams) as ONNX."""

import sys

OPSET = 18


def main(target: str, model: str, parameters: str = "") -> None:
    import paddle2onnx

    paddle2onnx.export(model, parameters, target, opset_version=OPSET, enable_onnx_checker=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
