// Runs the programs that tfjs.py writes: one operator of TF.js for each call.

const OPERATORS = {
  convolution: (tf, c, w) => ([x]) => tf.fused.conv2d({ x, filter: w.filters, bias: w.bias, strides: c.strides, pad: c.pad, activation: c.activation }),
  depthwise: (tf, c, w) => ([x]) => tf.fused.depthwiseConv2d({ x, filter: w.filters, bias: w.bias, strides: c.strides, pad: c.pad, activation: c.activation }),
  matMul: (tf, c, w) => ([a]) => tf.fused.matMul({ a, b: w.filters, bias: w.bias }),
  add: (tf) => ([a, b]) => tf.add(a, b),
  sub: (tf) => ([a, b]) => tf.sub(a, b),
  mul: (tf) => ([a, b]) => tf.mul(a, b),
  div: (tf) => ([a, b]) => tf.div(a, b),
  relu: (tf) => ([x]) => tf.relu(x),
  relu6: (tf) => ([x]) => tf.relu6(x),
  sigmoid: (tf) => ([x]) => tf.sigmoid(x),
  maxPool: (tf, c) => ([x]) => tf.maxPool(x, c.kernel, c.strides, c.pad.flat().some(Boolean) ? c.pad : "valid"),
  resizeBilinear: (tf, c) => ([x]) => tf.image.resizeBilinear(x, c.size, false, true),
  resizeNearestNeighbor: (tf, c) => ([x]) => tf.image.resizeNearestNeighbor(x, c.size, false, true),
  concat: (tf, c) => (parts) => tf.concat(parts, c.axis),
  slice: (tf, c) => ([x]) => tf.slice(x, c.begin, c.size),
  reshape: (tf, c) => ([x]) => tf.reshape(x, c.shape),
  mean: (tf) => ([x]) => tf.mean(x, [1, 2], true),
};

/** Returns a function of the input, with channels last, to { name: array } of outputs. */
export function compile(tf, program, bytes) {
  const tensor = ({ at, shape }) => tf.tensor(new Float32Array(bytes, at, shape.reduce((a, b) => a * b, 1)), shape);
  const calls = program.calls.map((call) => {
    const weights = Object.fromEntries(["filters", "bias"].filter((key) => call[key]).map((key) => [key, tensor(call[key])]));
    const operands = call.operands.map((o) => (o.weights ? { constant: tensor(o.weights) } : o));
    return { ...call, operands, run: OPERATORS[call.op](tf, call, weights) };
  });
  const [[name, shape]] = Object.entries(program.inputs);
  return (input) => {
    const values = { [name]: tf.tensor(input, shape) };
    for (const { operands, result, run, frees } of calls) {
      values[result] = run(operands.map((o) => o.constant ?? values[o.value]));
      for (const freed of frees) values[freed].dispose();
    }
    const outputs = {};
    for (const [output, value] of Object.entries(program.outputs)) outputs[output] = values[value].dataSync().slice();
    for (const value of new Set(Object.values(program.outputs))) values[value].dispose();
    return outputs;
  };
}

/** An output with channels last, with channels first as the other runtimes give it. */
export function channelsFirst(array, [batch, channels, rows, columns]) {
  const moved = new Float32Array(array.length);
  const space = rows * columns;
  for (let b = 0; b < batch; b++)
    for (let c = 0; c < channels; c++)
      for (let i = 0; i < space; i++) moved[(b * channels + c) * space + i] = array[(b * space + i) * channels + c];
  return moved;
}
