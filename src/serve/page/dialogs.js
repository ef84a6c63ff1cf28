// Questions to the user: the API key and the settings, as dialogs; and short notes at the edge of the page.
import {h, iconButton} from './dom.js';

// A note that goes away by itself, perhaps with something to do about it.
export function toast(text, action = null) {
  const close = () => note.remove();
  const note = h('div', {class: 'toast'}, h('span', {}, text),
    action && h('button', {type: 'button', onclick: () => (close(), action.run())}, action.label),
    iconButton('close', 'Close', close));
  document.getElementById('toasts').append(note);
  setTimeout(close, action ? 12_000 : 7_000);
}

function dialog(id, title, ...content) {
  const element = h('dialog', {id, 'aria-labelledby': id + '-title'}, h('h2', {id: id + '-title'}, title), ...content);
  element.addEventListener('close', () => element.remove());
  element.addEventListener('click', (event) => event.target === element && element.close());  // the dark around it
  document.body.append(element);
  return element;
}

// Resolves to the key, or to null.
export function askKey(wrong) {
  return new Promise((resolve) => {
    const input = h('input', {type: 'password', id: 'key', autocomplete: 'off', required: true, spellcheck: 'false'});
    const form = h('form', {method: 'dialog', onsubmit: () => resolve(input.value.trim() || null)},
      h('p', {class: wrong ? 'bad' : 'soft'}, wrong ? 'The server refused this key.' : 'This server asks for an API key.'),
      h('label', {class: 'field'}, 'API key', input),
      h('p', {class: 'note'}, 'It is kept until this tab is closed, and sent to this server alone.'),
      h('div', {class: 'buttons'}, h('button', {type: 'button', onclick: () => element.close()}, 'Cancel'),
        h('button', {class: 'primary', type: 'submit'}, 'Use this key')));
    const element = dialog('ask-key', 'API key', form);
    element.addEventListener('close', () => resolve(null));
    element.showModal();
    input.focus();
  });
}

// name in the request, label, what it does, attributes of the input
const FIELDS = [
  ['temperature', 'Temperature', '0: always the most likely token', {min: 0, max: 100, step: 'any'}],
  ['top_p', 'Top-p', 'most likely tokens with this total probability', {min: 0, max: 1, step: 'any'}],
  ['top_k', 'Top-k', 'so many of the most likely tokens; 0: all', {min: 0, step: 1}],
  ['min_p', 'Min-p', 'tokens at least this fraction as likely as the best', {min: 0, max: 1, step: 'any'}],
  ['max_tokens', 'Max tokens', 'length of an answer', {min: 1, step: 1}],
  ['seed', 'Seed', 'the same seed, the same answer; empty: a random one', {step: 1}],
  ['presence_penalty', 'Presence penalty', 'less of recent tokens', {min: -2, max: 2, step: 'any'}],
  ['frequency_penalty', 'Frequency penalty', 'less of recent tokens, each time they occur', {min: -2, max: 2, step: 'any'}],
  ['repetition_penalty', 'Repetition penalty', '1: none', {min: 0.01, max: 100, step: 'any'}],
];
export const SAMPLING = FIELDS.map(([name]) => name);

// settings: {mode, routing, and of the sampling those that are set}. save(settings, system).
export function editSettings({settings, system, props, save}) {
  const defaults = props?.default_generation_settings?.params ?? {};
  const hints = {max_tokens: settings.mode === 'text' ? '256' : 'no limit', seed: 'random'};
  const prompt = h('textarea', {id: 'system', rows: 4, value: system, placeholder: 'How the model should behave'});
  const inputs = FIELDS.map(([name, label, help, attributes]) => {
    const placeholder = String(defaults[name] ?? hints[name] ?? '');
    const input = h('input', {type: 'number', id: 'set-' + name, value: settings[name] ?? '', placeholder, inputmode: 'decimal',
      'aria-describedby': 'help-' + name, ...attributes});
    return {name, input, row: h('label', {class: 'field'}, label, input, h('span', {class: 'note', id: 'help-' + name}, help))};
  });
  const auto = props?.chat_template ? 'Automatic (chat)' : 'Automatic (text: the model has no chat template)';
  const mode = h('select', {id: 'mode'}, [['auto', auto], ['chat', 'Chat'], ['text', 'Text to continue']]
    .map(([value, label]) => h('option', {value, selected: (settings.mode ?? 'auto') === value}, label)));
  const routing = h('input', {type: 'checkbox', id: 'routing', checked: settings.routing !== false});
  const submit = () => {
    const out = {mode: mode.value, routing: routing.checked};
    for (const {name, input} of inputs)
      if (input.value.trim() !== '' && Number.isFinite(input.valueAsNumber)) out[name] = input.valueAsNumber;
    save(out, prompt.value);
  };
  const reset = () => {
    for (const {input} of inputs) input.value = '';
    mode.value = 'auto';
    routing.checked = true;
  };
  const form = h('form', {method: 'dialog', onsubmit: submit},
    h('label', {class: 'field'}, 'System prompt of this conversation', prompt),
    h('div', {class: 'fields'}, inputs.map((i) => i.row)),
    h('div', {class: 'fields'}, h('label', {class: 'field'}, 'Mode', mode),
      h('label', {class: 'check'}, routing,
        h('span', {}, 'Show the experts of each token', h('span', {class: 'note'}, 'the prompt is then computed anew each time')))),
    h('div', {class: 'buttons'}, h('button', {type: 'button', onclick: reset}, 'Defaults'), h('span', {class: 'gap'}),
      h('button', {type: 'button', onclick: () => element.close()}, 'Cancel'), h('button', {class: 'primary', type: 'submit'}, 'Save')));
  const element = dialog('settings', 'Settings', form);
  element.showModal();
}
