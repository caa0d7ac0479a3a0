// Decodes with npm's node-llama-cpp and writes the logits of every position and step as float32, as llama-run does; versions
// that do not show them have the probabilities made from them. What llama.cpp logs goes to stderr.
//
//   node decode.mjs DIRECTORY MODEL LOGITS        DIRECTORY has the node_modules
import fs from "node:fs";
import path from "node:path";
import {pathToFileURL} from "node:url";

const [directory, modelPath, logitsPath] = process.argv.slice(2);
const PROMPT = 40, STEPS = 16, VOCAB = 1024;

const {getLlama} = await import(pathToFileURL(path.join(directory, "node_modules/node-llama-cpp/dist/index.js")));
const llama = await getLlama({
    gpu: "vulkan", build: "never", logLevel: "info",
    logger: (level, message) => process.stderr.write(message.trimEnd() + "\n")
});
const model = await llama.loadModel({modelPath, gpuLayers: "max"});
const context = await model.createContext({contextSize: PROMPT + STEPS, batchSize: PROMPT, flashAttention: true});
const sequence = context.getSequence();

const devices = (await llama.getGpuDeviceNames()).length;
const layers = model.gpuLayers === model.fileInsights.totalLayers ? "all" : model.gpuLayers;
console.log(`gpu ${llama.gpu}, ${devices} devices, ${layers} layers on them`);

const file = fs.openSync(logitsPath, "w");
const wanted = {generateNext: {token: true, logits: true, probabilities: true, options: {temperature: 0}}};

// Adds these tokens' logits to the file; returns the best token after the last.
async function decode(tokens) {
    const results = await sequence.controlledEvaluate(tokens.map((token) => [token, wanted]));
    for (const {next} of results) {
        const values = next.logits ?? next.probabilities;
        const row = new Float32Array(VOCAB);
        for (const [token, value] of values) row[token] = value;
        if (values.size !== VOCAB || new Set(row).size < VOCAB / 2 || !row.every(Number.isFinite))
            throw new Error("these values prove nothing: not one a token, all alike, or not finite");
        fs.writeSync(file, row);
    }
    return results.at(-1).next.token;
}

let token = await decode(Array.from({length: PROMPT}, (_, i) => (i * 389 + 17) % VOCAB));
for (let step = 0; step < STEPS; step++) token = await decode([token]);
fs.closeSync(file);
await context.dispose();
await model.dispose();
await llama.dispose();
