// The official `openai` client for JavaScript, unmodified, against the server at DRIVETRAIN_URL.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const model = process.env.DRIVETRAIN_MODEL;
const client = new OpenAI({ baseURL: `${process.env.DRIVETRAIN_URL}/v1`, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "Name the days of the week." }];
const greedy = { model, messages, temperature: 0, seed: 7, max_tokens: 8 };
const schema = {
  type: "object",
  properties: { name: { type: "string", enum: ["Monday", "Tuesday"] }, free: { type: "boolean" } },
  required: ["name", "free"],
  additionalProperties: false,
};
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city.",
    parameters: { type: "object", properties: { city: { type: "string", enum: ["Paris", "Rome"] } }, required: ["city"] },
  },
};

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test("a chat answers and counts", async () => {
  const answer = await client.chat.completions.create(greedy);
  assert.equal(answer.model, model);
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 8);
  assert.ok(answer._request_id);
});

test("a stream spells what a whole answer says, and ends with the usage", async () => {
  const whole = await client.chat.completions.create(greedy);
  const chunks = await collect(
    await client.chat.completions.create({ ...greedy, stream: true, stream_options: { include_usage: true } }),
  );
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.total_tokens, whole.usage.total_tokens);
});

test("the streaming helper puts the same answer together", async () => {
  const whole = await client.chat.completions.create(greedy);
  const runner = client.chat.completions.stream(greedy);
  assert.equal((await runner.finalChatCompletion()).choices[0].message.content, whole.choices[0].message.content);
});

test("a stream can be left", async () => {
  const stream = await client.chat.completions.create({ ...greedy, max_tokens: 1000, stream: true });
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    break;
  }
  assert.ok(stream.controller.signal.aborted);
});

test("a schema is kept to", async () => {
  const answer = await client.chat.completions.create({
    ...greedy,
    max_tokens: 64,
    response_format: { type: "json_schema", json_schema: { name: "day", schema, strict: true } },
  });
  assert.ok(["Monday", "Tuesday"].includes(JSON.parse(answer.choices[0].message.content).name));
});

test("a demanded function is called, and takes its result", async () => {
  const asked = [{ role: "user", content: "What is the weather in Paris?" }];
  const answer = await client.chat.completions.create({
    ...greedy,
    messages: asked,
    max_tokens: 96,
    tools: [weather],
    tool_choice: { type: "function", function: { name: "get_weather" } },
  });
  const message = answer.choices[0].message;
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
  assert.equal(message.tool_calls.length, 1);
  assert.ok(["Paris", "Rome"].includes(JSON.parse(message.tool_calls[0].function.arguments).city));
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "sunny" };
  const second = await client.chat.completions.create({ ...greedy, messages: [...asked, message, result] });
  assert.ok(second.choices[0].message.content);
});

test("a prompt is continued", async () => {
  const asked = { model, prompt: "One, two, three,", temperature: 0, max_tokens: 8 };
  const whole = await client.completions.create(asked);
  const chunks = await collect(await client.completions.create({ ...asked, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), whole.choices[0].text);
});

test("vectors are the same in base64 and as numbers", async () => {
  const packed = await client.embeddings.create({ model, input: "a cat" });
  const plain = await client.embeddings.create({ model, input: "a cat", encoding_format: "float" });
  assert.equal(packed.data[0].embedding.length, 576);
  packed.data[0].embedding.forEach((value, at) => assert.ok(Math.abs(value - plain.data[0].embedding[at]) < 1e-6));
});

test("models are listed and described", async () => {
  const listed = await collect(client.models.list());
  assert.ok(listed.some((found) => found.id === model));
  assert.equal((await client.models.retrieve(model)).id, model);
});

test("errors have their class, status and code", async () => {
  await assert.rejects(client.chat.completions.create({ ...greedy, model: "nobody" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    assert.ok(error.requestID);
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...greedy, temperature: "hot" }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
  const long = [{ role: "user", content: "word ".repeat(9000) }];
  await assert.rejects(client.chat.completions.create({ ...greedy, messages: long, stream: true }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, "context_length_exceeded");
    return true;
  });
});
