// node tfjs.cjs MODULES MODEL.json SIDE < input.f32 > output.f32: an upscaler of @upscalerjs in TensorFlow.js itself, NHWC.
const fs = require("fs");
const path = require("path");
const [modules, description, side] = process.argv.slice(2);
const tf = require(path.join(modules, "node_modules", "@tensorflow", "tfjs"));

class MultiplyBeta extends tf.layers.Layer {
  call(inputs) { return tf.mul(Array.isArray(inputs) ? inputs[0] : inputs, 0.2); }
  static className = "MultiplyBeta";
}
tf.serialization.registerClass(MultiplyBeta);
for (const scale of [2, 3, 4, 8]) {
  class PixelShuffle extends tf.layers.Layer {
    computeOutputShape(shape) { return [shape[0], shape[1], shape[2], 3]; }
    call(inputs) { return tf.depthToSpace(Array.isArray(inputs) ? inputs[0] : inputs, scale, "NHWC"); }
    static className = `PixelShuffle${scale}x`;
  }
  tf.serialization.registerClass(PixelShuffle);
}

async function main() {
  const { modelTopology, weightsManifest } = JSON.parse(fs.readFileSync(description));
  const weightSpecs = weightsManifest.flatMap((group) => group.weights);
  const files = weightsManifest.flatMap((group) => group.paths.map((name) => path.join(path.dirname(description), name)));
  const bytes = Buffer.concat(files.map((file) => fs.readFileSync(file)));
  const weightData = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  const model = await tf.loadLayersModel(tf.io.fromMemory({ modelTopology, weightSpecs, weightData }));
  const given = fs.readFileSync(0);
  const input = new Float32Array(given.buffer.slice(given.byteOffset, given.byteOffset + given.length));
  const output = model.predict(tf.tensor4d(input, [1, Number(side), Number(side), 3]));
  process.stdout.write(Buffer.from(output.dataSync().buffer));
}
main();
