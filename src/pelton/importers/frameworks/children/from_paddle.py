"""Writes an inference model of PaddlePaddle (.pdmodel or .json, and .pdiparams) as ONNX, in the interpreter that has
PaddlePaddle: from_paddle.py TARGET MODEL [PARAMETERS]."""

import sys

OPSET = 18


def main(target: str, model: str, parameters: str = "") -> None:
    import paddle2onnx

    paddle2onnx.export(model, parameters, target, opset_version=OPSET, enable_onnx_checker=True)

    import paddle
    from framework_run import write_reference

    settings = paddle.inference.Config(model, parameters)
    settings.switch_ir_optim(False)
    predictor = paddle.inference.create_predictor(settings)

    def run(given):
        for name, array in given.items():
            handle = predictor.get_input_handle(name)
            handle.reshape(array.shape)
            handle.copy_from_cpu(array)
        predictor.run()
        return [predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()]

    write_reference(target, f"PaddlePaddle {paddle.__version__}", run)


if __name__ == "__main__":
    main(*sys.argv[1:])
