// Asks for vectors with the real openai: node embeddings.mjs BASE_URL KEY TEXT...
// Prints the answer by base, and under "tokens" how tokens are refused, as JSON.
import OpenAI from "openai";

const [base, key, ...input] = process.argv.slice(2);
const results = {};
for (const address of ["/openai/v1", "/v1", "/v1/models/embeddings/v1"]) {
  const client = new OpenAI({ apiKey: key, baseURL: `${base}${address}` });
  results[address] = await client.embeddings.create({ model: "embeddings", input });
}
const client = new OpenAI({ apiKey: key, baseURL: `${base}/v1` });
results["tokens"] = await client.embeddings
  .create({ model: "embeddings", input: [1, 2] })
  .catch(({ message, status, param }) => ({ message, status, param }));
console.log(JSON.stringify(results));
