// Server-sent events from a fetch: the data of each event, as it comes. (EventSource can neither POST nor send a key.)

// Bytes to events, for any cut of the bytes: a character, a line end or an event may be split between two parts.
export class EventParser {
  #held = '';
  #data = [];
  #decoder = new TextDecoder();

  // The data of the events that end in these bytes.
  push(bytes) {
    this.#held += this.#decoder.decode(bytes, {stream: true});
    const out = [];
    for (;;) {
      const end = this.#held.search(/[\r\n]/);
      if (end < 0) break;
      const cr = this.#held[end] === '\r';
      if (cr && end + 1 === this.#held.length) break;  // its \n may still come
      const line = this.#held.slice(0, end);
      this.#held = this.#held.slice(end + (cr && this.#held[end + 1] === '\n' ? 2 : 1));
      if (line === '') {
        if (this.#data.length) out.push(this.#data.join('\n'));
        this.#data = [];
      } else if (line.startsWith('data:')) {
        this.#data.push(line.slice(line[5] === ' ' ? 6 : 5));
      }
    }
    return out;
  }
}

export async function* events(stream) {
  const parser = new EventParser();
  const reader = stream.getReader();
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    reader.cancel().catch(() => {});  // whoever stops reading ends the request
  }
}
