// Which experts the tokens of one answer were sent to, as `"routing": true` reports it.
//
// Each event of a stream with routing is one token of the answer. Its routing is that of the positions run since the event
// before: of the prompt, with the first token; of the previous token, with every other. So the token of an event stands at the
// position after them, and the last token of an answer has no experts. An event without routing adds text to its token.
export class Trace {
  // moe: of /props
  constructor(moe) {
    this.layers = moe.layers;
    this.experts = moe.experts;
    this.index = new Map(moe.layers.map((layer, i) => [layer, i]));  // row of a layer
    this.tokens = [];      // {start, end} in the text, and the position
    this.rows = new Map(); // by position, of the answer: for each layer {experts, weights}; of the prompt only counts are kept
    this.first = Infinity; // the answer's first position
    this.answer = this.#counts();
    this.prompt = this.#counts();
    this.answered = 0;     // tokens of the answer that have experts
    this.prompted = 0;
  }
  #counts() {
    return {tokens: new Float64Array(this.layers.length * this.experts), weight: new Float64Array(this.layers.length * this.experts)};
  }

  // `text`: that the event adds; `length`: of the answer before it.
  add(text, routing, length) {
    if (routing && routing.tokens > 0) {
      const position = routing.first + routing.tokens;
      if (this.tokens.length === 0) this.first = position;
      for (let i = 0; i < routing.tokens; i++) this.#addRow(routing, i);
      this.tokens.push({start: length, end: length + text.length, position});
    } else if (this.tokens.length) {
      this.tokens.at(-1).end = length + text.length;
    }
  }
  #addRow(routing, i) {
    const position = routing.first + i;
    const inAnswer = position >= this.first;
    const to = inAnswer ? this.answer : this.prompt;
    const row = new Array(this.layers.length).fill(null);
    for (const {layer, experts, weights} of routing.layers) {
      const l = this.index.get(layer);
      if (l === undefined || !experts[i]) continue;
      row[l] = {experts: experts[i], weights: weights[i]};
      experts[i].forEach((expert, k) => {
        to.tokens[l * this.experts + expert] += 1;
        to.weight[l * this.experts + expert] += weights[i][k];
      });
    }
    if (inAnswer) this.rows.set(position, row);
    inAnswer ? this.answered++ : this.prompted++;
  }

  // For each layer {experts, weights} of a token of the answer; null when it was not run.
  rowOf(token) {
    return this.rows.get(this.tokens[token]?.position) ?? null;
  }
  // The newest token that has experts; -1: none.
  newest() {
    for (let t = this.tokens.length - 1; t >= 0; t--) if (this.rowOf(t)) return t;
    return -1;
  }
  // The tokens of an expert of the l-th MoE layer, and its weight in each.
  tokensOf(l, expert) {
    const out = new Map();
    for (let t = 0; t < this.tokens.length; t++) {
      const choice = this.rowOf(t)?.[l];
      const k = choice ? choice.experts.indexOf(expert) : -1;
      if (k >= 0) out.set(t, choice.weights[k]);
    }
    return out;
  }
  // How often the experts were chosen, layer by layer; with those of the prompt if wanted.
  counts(withPrompt) {
    return withPrompt ? this.answer.tokens.map((n, i) => n + this.prompt.tokens[i]) : this.answer.tokens;
  }
  weights(withPrompt) {
    return withPrompt ? this.answer.weight.map((n, i) => n + this.prompt.weight[i]) : this.answer.weight;
  }
}

// The token of each character range, for ranges in growing order: the first token that ends after `at`.
export function tokenAt(tokens, at) {
  let low = 0, high = tokens.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    tokens[middle].end <= at ? (low = middle + 1) : (high = middle);
  }
  return low;  // tokens.length: none
}
