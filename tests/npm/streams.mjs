// Reads a chat of a slow model with the real openai until its server dies, and the rest from another server:
// node streams.mjs BASE_URL OTHER_BASE_URL KEY PROMPT. Prints a line once the text has begun, and {text, error,
// finish_reason} as JSON.
import OpenAI from "openai";

const [base, other, key, prompt] = process.argv.slice(2);
const messages = [{ role: "user", content: prompt }];
const client = (address) => new OpenAI({ apiKey: key, baseURL: `${address}/openai/v1` });
const told = { text: "", error: "", finish_reason: null };
let last;

async function read(stream) {
  for await (const chunk of stream) {
    last = chunk;
    if (!told.text && chunk.choices[0].delta.content) console.log("it has begun");
    told.text += chunk.choices[0].delta.content ?? "";
    told.finish_reason = chunk.choices[0].finish_reason;
  }
}

try {
  await read(await client(base).chat.completions.create({ model: "words", messages, max_tokens: 60, stream: true }));
} catch (error) {
  told.error = error.message;
}
await read(
  await client(other).get(`/chat/completions/${last.id}`, {
    query: { stream: "true" }, headers: { "Last-Event-ID": last.event_id }, stream: true,
  }),
);
console.log(JSON.stringify(told));
