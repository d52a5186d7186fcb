// Calls every task with the real @huggingface/inference: node clients.mjs BASE_URL KEY < samples.json
// Prints {task: {answer} or {error, status, requestId}} as JSON.
import { readFileSync } from "node:fs";
import { InferenceClient } from "@huggingface/inference";

const [base, key] = process.argv.slice(2);
const samples = JSON.parse(readFileSync(0, "utf8"));
const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64"));
const blob = (text, type) => new Blob([bytes(text)], { type });
const model = (name) => new InferenceClient(key, { endpointUrl: `${base}/v1/models/${name}` });
const noRetry = { retry_on_error: false };

const calls = {
  "fill-mask": () => model("fill-mask").fillMask({ inputs: samples.masked }),
  "text-classification": () => model("text-classification").textClassification({ inputs: samples.text }),
  "token-classification": () => model("token-classification").tokenClassification({ inputs: samples.text }),
  "zero-shot-classification": () =>
    model("zero-shot-classification").zeroShotClassification({
      inputs: samples.text,
      parameters: { candidate_labels: ["a cat", "a dog"], multi_label: true },
    }),
  "feature-extraction": () => model("feature-extraction").featureExtraction({ inputs: samples.text }),
  "embeddings": () => model("embeddings").featureExtraction({ inputs: [samples.text, "other"] }),
  "sentence-similarity": () =>
    model("sentence-similarity").sentenceSimilarity({
      inputs: { source_sentence: samples.text, sentences: [samples.text, "something else"] },
    }),
  "text-generation": () =>
    model("text-generation").textGeneration({ inputs: samples.text, parameters: { max_new_tokens: 3 } }),
  "image-classification": () =>
    model("image-classification").imageClassification({ inputs: blob(samples.image, "image/png") }),
  "image-segmentation": () =>
    model("image-segmentation").imageSegmentation({ inputs: blob(samples.image, "image/png") }),
  "image without a type": () => model("image-classification").imageClassification({ inputs: blob(samples.image, "") }),
  "audio-classification": () =>
    model("audio-classification").audioClassification({ inputs: blob(samples.sound, "audio/wav") }),
  "automatic-speech-recognition": () =>
    model("automatic-speech-recognition").automaticSpeechRecognition({ inputs: blob(samples.sound, "audio/wav") }),
  "text-to-speech": async () => {
    const { type, size } = await model("speech").textToSpeech({ inputs: samples.text });
    return { type, size };
  },
  "slash": () =>
    new InferenceClient(key, { endpointUrl: `${base}/v1/models/fill-mask/` }).fillMask({ inputs: samples.masked }),
  "no mask": () => model("fill-mask").fillMask({ inputs: "no place to fill" }),
  "bad parameter": () => model("fill-mask").fillMask({ inputs: samples.masked, parameters: { top_k: 0 } }),
  "no model": () => model("nope").fillMask({ inputs: samples.masked }),
  "no key": () =>
    new InferenceClient("", { endpointUrl: `${base}/v1/models/fill-mask` }).fillMask({ inputs: samples.masked }),
  "nobody there": () => model("unserved").fillMask({ inputs: samples.masked }, noRetry),
};

const results = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    results[name] = { answer: await call() };
  } catch (error) {
    const { status, requestId } = error.httpResponse ?? {};
    results[name] = { error: error.message, status, requestId };
  }
}
console.log(JSON.stringify(results));
