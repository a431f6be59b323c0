"""Layers of Keras with many of their options, for models of one layer in of_keras.py."""

import keras
from keras import layers as L

F, LAST = "channels_first", "channels_last"


def of_layers():
    """name → (a layer, the shape of its input without the batch)"""
    found = {}
    for first in ("channels_last", "channels_first"):
        tag = "_first" if first == F else ""

        def image(*shape, first=first):
            *space, channels = shape
            return (channels, *space) if first == F else shape

        d = {"data_format": first}
        for n, size in ((1, (17,)), (2, (13, 10)), (3, (7, 5, 6))):
            conv, kernel = getattr(L, f"Conv{n}D"), (3, 2, 4)[:n]
            shape = image(*size, 4)
            if first == LAST:  # Keras has no kernels for the others on CPUs
                found[f"conv{n}d"] = conv(5, kernel, **d), shape
                found[f"conv{n}d_same"] = conv(6, 3, padding="same", groups=2, use_bias=False, **d), shape
                found[f"conv{n}d_stride"] = conv(5, kernel, strides=2, padding="same", activation="relu", **d), shape
                found[f"conv{n}d_dilated"] = conv(5, 2, dilation_rate=2, padding="same", **d), shape
                transposed = getattr(L, f"Conv{n}DTranspose")
                for padding in ("valid", "same"):
                    for k, s in ((3, 2), (2, 3), (4, 1)):
                        found[f"conv{n}d_transpose_{padding}_{k}_{s}"] = transposed(3, k, s, padding, **d), shape
                found[f"conv{n}d_transpose_more"] = transposed(3, 3, 2, "same", output_padding=1, **d), shape
                found[f"conv{n}d_transpose_valid_more"] = transposed(3, 3, 2, "valid", output_padding=1, **d), shape
            for kind in ("Max", "Average"):
                pool = getattr(L, f"{kind}Pooling{n}D")
                if first == LAST:
                    found[f"{kind}pool{n}d"] = pool(2, **d), shape
                    found[f"{kind}pool{n}d_same"] = pool(3, strides=2, padding="same", **d), shape
                whole = getattr(L, f"Global{kind}Pooling{n}D")
                found[f"global_{kind}{n}d{tag}"] = whole(**d), shape
                found[f"global_{kind}{n}d_kept{tag}"] = whole(keepdims=True, **d), shape
            found[f"zero_padding{n}d{tag}"] = getattr(L, f"ZeroPadding{n}D")(2, **d), shape
            crop = {} if n == 1 else d
            found[f"cropping{n}d{tag}"] = getattr(L, f"Cropping{n}D")(1, **crop), shape
            up = {} if n == 1 else d
            found[f"upsampling{n}d{tag}"] = getattr(L, f"UpSampling{n}D")(2, **up), shape
        found[f"zero_padding2d_pairs{tag}"] = L.ZeroPadding2D(((1, 2), (0, 3)), **d), image(5, 6, 2)
        found[f"cropping2d_pairs{tag}"] = L.Cropping2D(((1, 2), (0, 3)), **d), image(5, 6, 2)
        found[f"upsampling_bilinear{tag}"] = L.UpSampling2D((2, 3), interpolation="bilinear", **d), image(5, 6, 2)
        for method in ("nearest", "bilinear", "bicubic"):
            for size in ((7, 15), (3, 4)):
                name = f"resizing_{method}_{size[0]}{tag}"
                found[name] = L.Resizing(*size, interpolation=method, **d), image(5, 9, 3)
        found[f"center_crop{tag}"] = L.CenterCrop(4, 3, **d), image(7, 8, 2)
        found[f"flatten{tag}"] = L.Flatten(**d), image(3, 4, 5)
    found["conv1d_causal"] = L.Conv1D(5, 3, dilation_rate=2, padding="causal"), (11, 4)
    for n in (1, 2):
        shape = ((13, 3), (9, 11, 3))[n - 1]
        depthwise, separable = getattr(L, f"DepthwiseConv{n}D"), getattr(L, f"SeparableConv{n}D")
        found[f"depthwise{n}d"] = depthwise(3, depth_multiplier=2), shape
        found[f"depthwise{n}d_same"] = depthwise(3, strides=2, padding="same", activation="relu6"), shape
        found[f"depthwise{n}d_dilated"] = depthwise(2, padding="same", dilation_rate=2, use_bias=False), shape
        found[f"separable{n}d"] = separable(5, 3, strides=2, padding="same", depth_multiplier=2), shape
        found[f"separable{n}d_valid"] = separable(5, 2, activation="tanh", use_bias=False), shape
    for name in (
        *("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "swish", "softplus", "softsign"),
        *("sigmoid", "tanh", "exponential", "hard_sigmoid", "hard_silu", "hard_tanh", "hard_shrink", "soft_shrink"),
        *("sparse_plus", "squareplus", "tanh_shrink", "log_sigmoid", "sparse_sigmoid", "mish", "softmax"),
        *("log_softmax", "linear"),
    ):
        found[f"activation_{name}"] = L.Activation(name), (7, 5)
    found["dense_softmax"] = L.Dense(6, activation="softmax"), (9,)
    found["dense_3d"] = L.Dense(6, activation=L.LeakyReLU(0.1), use_bias=False), (4, 9)
    found["dense_4d"] = L.Dense(6), (3, 4, 9)
    for i, equation in enumerate(("abc,cd->abd", "abc,cde->abde", "...x,xy->...y", "abc,acd->abd")):
        shape = [(None, 6), (None, 2, 3), (6,), None][i]
        if shape:
            axes = (None, "de", "y")[i]
            found[f"einsum_dense_{i}"] = L.EinsumDense(equation, shape, bias_axes=axes), (4, 5)
    found["relu_max"] = L.ReLU(max_value=0.7, negative_slope=0.2, threshold=0.3), (7, 5)
    found["relu_threshold"] = L.ReLU(threshold=0.5), (7, 5)
    found["relu_slope"] = L.ReLU(max_value=0.5, negative_slope=0.25), (7, 5)
    found["leaky"] = L.LeakyReLU(0.15), (7, 5)
    found["elu"] = L.ELU(0.7), (7, 5)
    found["prelu"] = L.PReLU(), (4, 5, 3)
    found["prelu_shared"] = L.PReLU(shared_axes=[1, 2]), (4, 5, 3)
    found["softmax_axis"] = L.Softmax(axis=1), (4, 5)
    for axis in (1, 2, 3, -1):
        found[f"batch_norm_{axis}"] = L.BatchNormalization(axis=axis), (4, 5, 3)
    found["batch_norm_2d"] = L.BatchNormalization(epsilon=0.01), (6,)
    found["batch_norm_bare"] = L.BatchNormalization(center=False, scale=False), (4, 3)
    found["batch_norm_frozen"] = L.BatchNormalization(trainable=False), (4, 3)
    found["layer_norm"] = L.LayerNormalization(), (4, 5, 6)
    found["layer_norm_two"] = L.LayerNormalization(axis=(-2, -1), scale=False), (4, 5, 6)
    found["layer_norm_first"] = L.LayerNormalization(axis=1, center=False), (4, 5, 6)
    found["rms_norm"] = L.RMSNormalization(), (4, 6)
    found["group_norm"] = L.GroupNormalization(groups=3), (4, 5, 6)
    found["group_norm_first"] = L.GroupNormalization(groups=2, axis=1), (4, 5, 6)
    found["group_norm_each"] = L.GroupNormalization(groups=-1, center=False), (5, 6)
    found["unit_norm"] = L.UnitNormalization(), (4, 6)
    found["unit_norm_axes"] = L.UnitNormalization(axis=[1, 2]), (4, 6)
    found["rescaling"] = L.Rescaling(1 / 127.5, offset=-1), (4, 5, 3)
    found["rescaling_each"] = L.Rescaling([0.5, 2.0, 3.0], offset=[0.1, 0.2, 0.3]), (4, 5, 3)
    found["normalization"] = L.Normalization(), (5, 3)
    found["normalization_given"] = L.Normalization(mean=[1.0, 2.0, 3.0], variance=[1.0, 4.0, 0.5]), (5, 3)
    found["normalization_one"] = L.Normalization(axis=None, mean=2.0, variance=3.0), (5, 3)
    found["normalization_inverse"] = L.Normalization(axis=1, invert=True), (5, 3)
    found["reshape"] = L.Reshape((-1, 6)), (4, 9)
    found["permute"] = L.Permute((3, 1, 2)), (4, 5, 6)
    found["repeat_vector"] = L.RepeatVector(3), (5,)
    found["flatten_1d"] = L.Flatten(), ()
    passing = (L.Dropout(0.5), L.SpatialDropout1D(0.5), L.GaussianNoise(0.5), L.GaussianDropout(0.5))
    for layer in (*passing, L.AlphaDropout(0.5), L.ActivityRegularization(0.1), L.Identity()):
        found[type(layer).__name__] = layer, (4, 5)
    for layer in (L.SpatialDropout2D(0.5), L.RandomFlip(), L.RandomRotation(0.2), L.RandomZoom(0.1)):
        found[type(layer).__name__] = layer, (4, 5, 3)
    found["RandomContrast"] = L.RandomContrast(0.3), (4, 5, 3)
    for kind in (L.LSTM, L.GRU, L.SimpleRNN):
        name = kind.__name__
        found[name] = kind(5), (7, 4)
        found[f"{name}_sequences"] = kind(5, return_sequences=True), (7, 4)
        found[f"{name}_backwards"] = kind(5, return_sequences=True, go_backwards=True), (7, 4)
        found[f"{name}_backwards_last"] = kind(5, go_backwards=True, use_bias=False), (7, 4)
        found[f"{name}_functions"] = kind(5, activation="relu", return_sequences=True), (7, 4)
        found[f"{name}_state"] = kind(5, return_sequences=True, return_state=True), (7, 4)
        for mode in ("concat", "sum", "mul", "ave", None):
            found[f"{name}_bidirectional_{mode}"] = L.Bidirectional(kind(5), merge_mode=mode), (7, 4)
        found[f"{name}_bidirectional_sequences"] = L.Bidirectional(kind(5, return_sequences=True)), (7, 4)
        found[f"{name}_bidirectional_state"] = L.Bidirectional(kind(5, return_state=True)), (7, 4)
    found["LSTM_hard"] = L.LSTM(5, recurrent_activation="hard_sigmoid"), (7, 4)
    found["GRU_before"] = L.GRU(5, reset_after=False, return_sequences=True), (7, 4)
    found["rnn_cell"] = L.RNN(L.LSTMCell(5), return_sequences=True, return_state=True), (7, 4)
    found["rnn_gru_cell"] = L.RNN(L.GRUCell(5), go_backwards=True), (7, 4)
    found["rnn_cells"] = L.RNN([L.LSTMCell(5), L.LSTMCell(3)]), (7, 4)
    found["rnn_cells_sequences"] = L.RNN([L.GRUCell(5), L.SimpleRNNCell(3)], return_sequences=True), (7, 4)
    found["time_distributed"] = L.TimeDistributed(L.Dense(3, activation="relu")), (7, 4)
    found["time_distributed_conv"] = L.TimeDistributed(L.Conv2D(3, 3)), (4, 6, 5, 2)
    inner = keras.Sequential([L.Dense(6), L.BatchNormalization(), L.Dense(3)])
    found["time_distributed_model"] = L.TimeDistributed(inner), (7, 4)
    return {name.lower(): case for name, case in found.items()}
