// What the user points at: a token of an answer, {answer, token}, or an expert, {l, expert} (the l-th MoE layer's). Pointing
// passes; a click holds it until the next one.
export class Focus {
  #hover = null;
  #pinned = null;
  #listeners = [];

  get() {
    return this.#hover ?? this.#pinned;
  }
  pinned() {
    return this.#pinned;
  }
  subscribe(call) {
    this.#listeners.push(call);
  }
  #tell() {
    for (const call of this.#listeners) call(this.get());
  }
  hover(target) {
    if (sameFocus(target, this.#hover)) return;
    this.#hover = target;
    this.#tell();
  }
  // The same once more lets go.
  pin(target) {
    this.#pinned = sameFocus(target, this.#pinned) ? null : target;
    this.#hover = null;
    this.#tell();
  }
  clear() {
    if (!this.#hover && !this.#pinned) return false;
    this.#hover = this.#pinned = null;
    this.#tell();
    return true;
  }
}

export function sameFocus(a, b) {
  return a === b || (!!a && !!b && a.answer === b.answer && a.token === b.token && a.l === b.l && a.expert === b.expert);
}
