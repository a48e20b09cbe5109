// The official `ollama` client for JavaScript, unmodified, against the server at DRIVETRAIN_URL.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Ollama } from "ollama";

const model = process.env.DRIVETRAIN_MODEL;
const client = new Ollama({ host: process.env.DRIVETRAIN_URL });
const messages = [{ role: "user", content: "Name the days of the week." }];
const options = { temperature: 0, seed: 7, num_predict: 8 };
const schema = {
  type: "object",
  properties: { name: { type: "string", enum: ["Monday", "Tuesday"] } },
  required: ["name"],
};

async function collect(stream) {
  const frames = [];
  for await (const frame of stream) frames.push(frame);
  return frames;
}

test("a chat answers and counts", async () => {
  const answer = await client.chat({ model, messages, options });
  assert.equal(answer.model, model);
  assert.equal(answer.done_reason, "length");
  assert.equal(answer.eval_count, 8);
});

test("a stream spells what a whole answer says", async () => {
  const whole = await client.chat({ model, messages, options });
  const frames = await collect(await client.chat({ model, messages, options, stream: true }));
  assert.equal(frames.map((frame) => frame.message.content).join(""), whole.message.content);
  assert.ok(frames.at(-1).done);
});

test("generate says what chat says, and goes on from its context", async () => {
  const chat = await client.chat({ model, messages, options });
  const first = await client.generate({ model, prompt: messages[0].content, options });
  assert.equal(first.response, chat.message.content);
  const frames = await collect(
    await client.generate({ model, prompt: "And the months?", context: first.context, options, stream: true }),
  );
  assert.ok(frames.at(-1).context.length > first.context.length);
});

test("a stream can be left", async () => {
  const stream = await client.chat({ model, messages, options: { ...options, num_predict: 1000 }, stream: true });
  await assert.rejects(
    async () => {
      for await (const frame of stream) {
        assert.equal(frame.done, false);
        stream.abort();
      }
    },
    { name: "AbortError" },
  );
});

test("a schema is kept to", async () => {
  const answer = await client.chat({ model, messages, format: schema, options: { ...options, num_predict: 64 } });
  assert.ok(["Monday", "Tuesday"].includes(JSON.parse(answer.message.content).name));
});

test("texts are embedded", async () => {
  const answer = await client.embed({ model, input: ["a cat", "a dog"], dimensions: 64 });
  assert.deepEqual(answer.embeddings.map((vector) => vector.length), [64, 64]);
  assert.equal((await client.embeddings({ model, prompt: "a cat" })).embedding.length, 576);
});

test("models are listed, shown, made, copied, loaded, unloaded and deleted", async () => {
  const name = "ollama-js-pirate";
  const frames = await collect(
    await client.create({ model: name, from: model, system: "You are a pirate.", parameters: { num_ctx: 512 }, stream: true }),
  );
  assert.equal(frames.at(-1).status, "success");
  assert.match((await client.show({ model: name })).modelfile, /SYSTEM You are a pirate\./);
  await client.copy({ source: name, destination: `${name}:copy` });
  const names = (await client.list()).models.map((found) => found.model);
  assert.ok([`${name}:latest`, `${name}:copy`, model].every((wanted) => names.includes(wanted)));
  assert.equal((await client.generate({ model: name, prompt: "", keep_alive: "10m" })).done_reason, "load");
  const loaded = (await client.ps()).models.find((found) => found.model === `${name}:latest`);
  assert.equal(loaded.context_length, 512);
  assert.equal((await client.generate({ model: name, prompt: "", keep_alive: 0 })).done_reason, "unload");
  assert.ok(!(await client.ps()).models.some((found) => found.model === `${name}:latest`));
  for (const made of [name, `${name}:copy`]) assert.equal((await client.delete({ model: made })).status, "success");
});

test("the small model comes from its installed package", async () => {
  const frames = await collect(await client.pull({ model, stream: true }));
  assert.equal(frames.at(-1).status, "success");
  assert.equal((await client.pull({ model })).status, "success");
});

test("errors have their text and status", async () => {
  await assert.rejects(client.chat({ model: "nobody", messages }), { name: "ResponseError", status_code: 404 });
  await assert.rejects(client.chat({ model, messages, think: true }), /does not support thinking/);
  await assert.rejects(client.generate({ model, prompt: "x", raw: true, system: "x" }), /raw mode does not support/);
});
