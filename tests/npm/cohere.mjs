// Has texts ranked and embedded with the real cohere-ai: node cohere.mjs BASE_URL KEY QUERY TEXT...
// Prints {call: answer or {status, body}} as JSON.
import { CohereClient, CohereClientV2 } from "cohere-ai";

const [base, key, query, ...documents] = process.argv.slice(2);
const options = { token: key, environment: base, maxRetries: 0 };
const [v1, v2] = [new CohereClient(options), new CohereClientV2(options)];
const results = {};
const ask = async (name, call) => {
  results[name] = await call().catch(({ statusCode, body }) => ({ status: statusCode, body }));
};
await ask("v1", () => v1.rerank({ model: "ranker", query, documents, topN: 2, returnDocuments: true }));
await ask("v2", () => v2.rerank({ model: "ranker", query, documents }));
await ask("no model", () => v2.rerank({ model: "nope", query, documents }));
await ask("no documents", () => v2.rerank({ model: "ranker", query, documents: [] }));
const texts = { model: "embeddings", texts: documents, inputType: "search_document" };
await ask("vectors v1", () => v1.embed(texts));
await ask("vectors v2", () => v2.embed({ ...texts, embeddingTypes: ["float", "base64"] }));
await ask("vectors of int8", () => v2.embed({ ...texts, embeddingTypes: ["int8"] }));
console.log(JSON.stringify(results));
