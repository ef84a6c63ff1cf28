// Light, dark, or as the system says. Its own module, loaded first, so that the page never flashes in the wrong colours.
import {h, icon} from './dom.js';

const KEY = 'dsmoe.theme';
const CHOICES = ['auto', 'light', 'dark'];
const ICONS = {auto: 'auto', light: 'sun', dark: 'moon'};
const WORDS = {auto: 'Colours: as the system', light: 'Colours: light', dark: 'Colours: dark'};

function stored() {
  try {
    const value = localStorage.getItem(KEY);
    return CHOICES.includes(value) ? value : 'auto';
  } catch {
    return 'auto';
  }
}

let choice = stored();
const listeners = new Set();

function apply() {
  document.documentElement.dataset.theme = choice;
  for (const call of listeners) call();
}
apply();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', apply);

export function onTheme(call) {
  listeners.add(call);
}

export function themeButton() {
  const button = h('button', {type: 'button', class: 'icon-button', id: 'theme'});
  const show = () => {
    button.replaceChildren(icon(ICONS[choice]));
    button.title = WORDS[choice];
    button.setAttribute('aria-label', WORDS[choice]);
  };
  button.addEventListener('click', () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try {
      localStorage.setItem(KEY, choice);
    } catch { /* it lasts until the page is closed, then */ }
    apply();
    show();
  });
  show();
  return button;
}
