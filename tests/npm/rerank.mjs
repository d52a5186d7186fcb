// Has texts ranked with the real cohere-ai: node rerank.mjs BASE_URL KEY QUERY TEXT...
// Prints {call: answer or {status, body}} as JSON.
import { CohereClient, CohereClientV2 } from "cohere-ai";

const [base, key, query, ...documents] = process.argv.slice(2);
const options = { token: key, environment: base, maxRetries: 0 };
const [v1, v2] = [new CohereClient(options), new CohereClientV2(options)];
const told = {};
const ask = async (name, call) => {
  told[name] = await call().catch(({ statusCode, body }) => ({ status: statusCode, body }));
};
await ask("v1", () => v1.rerank({ model: "ranker", query, documents, topN: 2, returnDocuments: true }));
await ask("v2", () => v2.rerank({ model: "ranker", query, documents }));
await ask("no model", () => v2.rerank({ model: "nope", query, documents }));
await ask("no documents", () => v2.rerank({ model: "ranker", query, documents: [] }));
console.log(JSON.stringify(told));
