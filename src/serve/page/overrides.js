// Which experts are switched off, for the answers to come: the `overrides` of a request.

export class Overrides {
  #off = new Set();  // "layer:expert"
  skipBest = 0;
  perToken = 0;  // 0: as the model has it
  dropShared = false;

  isOff(layer, expert) {
    return this.#off.has(`${layer}:${expert}`);
  }
  toggle(layer, expert) {
    const key = `${layer}:${expert}`;
    if (!this.#off.delete(key)) this.#off.add(key);
  }
  off() {
    return [...this.#off].map((key) => key.split(':').map(Number)).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  }
  clear() {
    this.#off.clear();
    this.skipBest = this.perToken = 0;
    this.dropShared = false;
  }
  // As the server takes it; null: nothing is changed.
  request() {
    const out = {};
    if (this.#off.size) out.disabled = this.off();
    if (this.skipBest) out.skip_best = this.skipBest;
    if (this.perToken) out.experts_per_token = this.perToken;
    if (this.dropShared) out.drop_shared = true;
    return Object.keys(out).length ? out : null;
  }
}

// In words, for people: "3 experts off, without shared experts".
export function described(request) {
  if (!request) return 'All experts';
  const parts = [];
  const off = request.disabled ?? [];
  if (off.length === 1) parts.push(`layer ${off[0][0]} expert ${off[0][1]} off`);
  else if (off.length) parts.push(`${off.length} experts off`);
  if (request.skip_best === 1) parts.push("each token's best expert masked");
  else if (request.skip_best) parts.push(`each token's ${request.skip_best} best experts masked`);
  if (request.experts_per_token) parts.push(`${request.experts_per_token} expert${request.experts_per_token === 1 ? '' : 's'} per token`);
  if (request.drop_shared) parts.push('without shared experts');
  const text = parts.join(', ');
  return text[0].toUpperCase() + text.slice(1);
}

export const sameOverrides = (a, b) => JSON.stringify(a ?? null) === JSON.stringify(b ?? null);
