// The server's API: requests with the key, errors as one line that a person can read.
import {events} from './sse.js';

const KEY = 'dsmoe.key';  // in sessionStorage: gone when the tab is closed

export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function errorOf(response) {
  const text = await response.text().catch(() => '');
  let message = '';
  try {
    message = JSON.parse(text).error.message;
  } catch { /* a proxy's page, perhaps: say the status */ }
  if (typeof message !== 'string' || !message) message = `The server answered ${response.status} ${response.statusText}`.trim();
  const wait = response.headers.get('Retry-After');
  if (response.status === 429 && wait) message += ` (in ${wait} s)`;
  return new ServerError(message, response.status);
}

export class Api {
  // askKey(wrong): asks the user for the key; resolves to it, or to null. `wrong`: one was sent and refused.
  constructor(askKey) {
    this.askKey = askKey;
  }

  #key() {
    try {
      return sessionStorage.getItem(KEY) ?? this.held ?? '';
    } catch {
      return this.held ?? '';
    }
  }
  #keep(key) {
    this.held = key;
    try {
      sessionStorage.setItem(KEY, key);
    } catch { /* kept by this object alone */ }
  }

  async #fetch(path, options) {
    for (;;) {
      const key = this.#key();
      const headers = {...options.headers};
      if (/[^\x20-\x7e]/.test(key)) {  // no header can have it
        const given = await this.askKey(true);
        if (!given) throw new ServerError('An API key has letters, digits and signs of ASCII alone', 401);
        this.#keep(given);
        continue;
      }
      if (key) headers.Authorization = `Bearer ${key}`;
      let response;
      try {
        response = await fetch(path, {...options, headers, credentials: 'omit'});
      } catch (error) {
        if (error.name === 'AbortError') throw error;
        throw new ServerError('The server cannot be reached');
      }
      if (response.status !== 401) return response;
      const error = await errorOf(response);
      // Two requests may ask at once: they share one question.
      this.asking ??= this.askKey(key !== '').finally(() => (this.asking = null));
      const given = await this.asking;
      if (!given) throw error;
      this.#keep(given);
    }
  }

  async get(path) {
    const response = await this.#fetch(path, {});
    if (!response.ok) throw await errorOf(response);
    return response.json();
  }

  // The events of a stream, parsed.
  async *stream(path, body, signal) {
    const response = await this.#fetch(path, {
      method: 'POST',
      headers: {'Content-Type': 'application/json'},
      body: JSON.stringify({...body, stream: true, stream_options: {include_usage: true}}),
      signal,
    });
    if (!response.ok) throw await errorOf(response);
    let ended = false;
    try {
      for await (const data of events(response.body)) {
        if (data === '[DONE]') {
          ended = true;
          return;
        }
        let event;
        try {
          event = JSON.parse(data);
        } catch {
          throw new ServerError('The server sent an event that is no JSON');
        }
        if (event.error) throw new ServerError(event.error.message ?? 'The server reported an error');
        yield event;
      }
    } catch (error) {
      if (error.name === 'AbortError' || error instanceof ServerError) throw error;
      throw new ServerError('The connection broke off');
    }
    if (!ended) throw new ServerError('The connection broke off');
  }
}
