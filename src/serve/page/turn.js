// One answer: the request for it, and the stream that fills it.
import {SAMPLING} from './dialogs.js';
import {newId} from './store.js';

export const textOf = (message) => (message.role === 'user' ? message.text : message.answers[message.shown].text);

export function newAnswer(seed, overrides) {
  return {id: newId(), text: '', seed, overrides, finish: null, error: null, stats: null};
}

// The server takes 64 bits; these are what a JavaScript number holds exactly, and what people can read out.
export const randomSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

// {path, body}: for what comes after the first `count` messages of a conversation.
export function requestFor({conversation, count, text, settings, answer, routing}) {
  const body = {seed: answer.seed, routing};
  for (const name of SAMPLING) if (name !== 'seed' && settings[name] !== undefined) body[name] = settings[name];
  if (answer.overrides) body.overrides = answer.overrides;
  const before = conversation.messages.slice(0, count);
  if (text) {
    body.prompt = conversation.system + before.map(textOf).join('');
    body.max_tokens ??= 256;  // the server's 16 are for programs
    return {path: '/v1/completions', body};
  }
  body.messages = before.map((m) => ({role: m.role, content: textOf(m)}));
  if (conversation.system.trim()) body.messages.unshift({role: 'system', content: conversation.system});
  return {path: '/v1/chat/completions', body};
}

// Fills the answer as its stream comes, and calls onChange() for each part. Errors end up in the answer.
export async function fill(answer, {api, request, trace, signal, onChange}) {
  const began = performance.now();
  let first = 0, last = 0, parts = 0;
  try {
    for await (const event of api.stream(request.path, request.body, signal)) {
      if (event.usage) answer.stats = {tokens: event.usage.completion_tokens, prompt: event.usage.prompt_tokens};
      const choice = event.choices?.[0];
      if (!choice) continue;
      const text = choice.delta?.content ?? choice.text ?? '';
      if (text || choice.routing) {
        last = performance.now();
        first ||= last;
        parts += 1;
      }
      trace?.add(text, choice.routing, answer.text.length);
      answer.text += text;
      if (choice.finish_reason) answer.finish = choice.finish_reason;
      onChange();
    }
  } catch (error) {
    if (signal.aborted) answer.finish = 'stopped';
    else answer.error = error.message;
  }
  answer.stats ??= {tokens: parts};  // a stream that was cut off has no usage
  answer.stats.first = first ? (first - began) / 1000 : 0;
  answer.stats.seconds = last > first ? (last - first) / 1000 : 0;
  onChange();
}
