// The page: what belongs together is put together here, and every action of the user ends up in a method of App.
import {Api} from './api.js';
import {Composer} from './composer.js';
import {askKey, editSettings, toast} from './dialogs.js';
import {h, icon, iconButton, perFrame} from './dom.js';
import {ExpertsPanel} from './experts_panel.js';
import {Focus} from './focus.js';
import {described, Overrides, sameOverrides} from './overrides.js';
import {Sidebar} from './sidebar.js';
import {download, newConversation, Store, titleFrom} from './store.js';
import {onTheme, themeButton} from './theme.js';
import {Thread} from './thread.js';
import {Trace} from './trace.js';
import {fill, newAnswer, randomSeed, requestFor} from './turn.js';

const byId = (id) => document.getElementById(id);
const WIDE = matchMedia('(min-width: 1200px)'), MEDIUM = matchMedia('(min-width: 820px)');
const SAVE_EVERY = 2000;  // ms, while an answer comes

class App {
  constructor() {
    this.api = new Api(askKey);
    this.store = new Store(() => this.#storageFull());
    this.settings = this.store.settings();
    this.props = null;
    this.moe = null;          // of the model; null: it has no experts, or is not known yet
    this.traces = new Map();  // by id of the answer; not kept in the browser
    this.focus = new Focus();
    this.overrides = new Overrides();
    this.run = null;          // {conversation, controller, answer} while an answer comes
    this.conversation = newConversation();
    this.#build();
    const latest = this.store.list()[0];
    const kept = latest && this.store.load(latest.id);
    if (kept) this.conversation = kept;
    this.refresh();
    this.#connect();
  }

  #build() {
    this.sidebar = new Sidebar(byId('sidebar'), {
      open: (id) => this.open(id),
      create: () => this.create(),
      close: () => this.toggle('sidebar', false),
      rename: (id, title) => this.#change(id, (c) => Object.assign(c, {title, named: title !== ''})),
      remove: (id) => this.remove(id),
      save: (id) => this.export([id]),
      saveAll: () => this.export(this.store.list().map((c) => c.id)),
    });
    this.title = h('div', {class: 'title'});
    byId('top').append(iconButton('menu', 'Conversations', () => this.toggle('sidebar'), {id: 'menu'}), this.title,
      iconButton('sliders', 'Settings', () => this.editSettings(), {id: 'open-settings'}), themeButton(),
      iconButton('grid', 'Experts', () => this.toggle('experts'), {id: 'open-experts'}));
    byId('to-end').append(icon('down'));
    this.thread = new Thread(byId('thread'), byId('scroll'), byId('to-end'), {
      edit: (i, text) => this.edit(i, text),
      again: (i) => this.again(i),
      show: (i, n) => this.#changeMessage(i, {shown: n, beside: null}),
      beside: (i, n) => this.#changeMessage(i, {beside: n}),
      keep: (i, n) => this.#changeMessage(i, {shown: n, beside: null}),
      suggest: (text) => this.send(text),
    });
    this.composer = new Composer(byId('composer'), {
      send: (text) => this.send(text),
      stop: () => this.stop(),
      clearOverrides: () => {
        this.overrides.clear();
        this.panel?.overridesChanged();
        this.#overridesChanged();
      },
    });
    this.toggle('sidebar', WIDE.matches);
    byId('veil').addEventListener('click', () => this.toggle('sidebar', false));
    WIDE.addEventListener('change', () => this.toggle('sidebar', WIDE.matches));
    this.store.onChange(() => this.#otherTab());
    addEventListener('keydown', (event) => this.#key(event));
    addEventListener('pagehide', () => this.run && !this.run.dropped && this.store.save(this.run.conversation));
    this.#pointAtTokens();
    this.focus.subscribe((focus) => this.#focused(focus));
    onTheme(() => this.panel?.redraw());
  }

  // What the server says of its model decides the mode and the map.
  async #connect() {
    try {
      this.props = await this.api.get('/props');
    } catch (error) {
      toast(error.message, {label: 'Retry', run: () => this.#connect()});
      this.refresh();
      return;
    }
    const moe = this.props.moe;
    if (moe?.layers?.length && moe.experts > 0 && !this.panel) {
      this.moe = moe;
      this.panel = new ExpertsPanel(byId('experts'), {moe, focus: this.focus, overrides: this.overrides, actions: {
        close: () => this.toggle('experts', false),
        changed: () => this.#overridesChanged(),
        compare: () => this.compare(),
        say: (text) => (byId('announce').textContent = text),
      }});
      this.toggle('experts', MEDIUM.matches);
    }
    byId('open-experts').hidden = !this.moe;
    document.title = this.props.model_alias ? `${this.props.model_alias} · dsmoe` : 'dsmoe';
    this.refresh();
    this.composer.focus();
  }

  // --- what is shown

  get plain() {
    const mode = this.settings.mode ?? 'auto';
    return mode === 'text' || (mode === 'auto' && this.props !== null && !this.props.chat_template);
  }
  get model() {
    return this.props?.model_alias ?? '';
  }

  refresh() {
    this.thread.show({conversation: this.conversation, traces: this.traces, plain: this.plain, model: this.model,
      running: new Set(this.run ? [this.run.answer.id] : [])});
    this.composer.setRunning(this.run !== null);
    this.composer.setMode(this.plain, this.model);
    this.title.replaceChildren(h('strong', {}, this.conversation.title || 'New conversation'), h('span', {class: 'soft'}, this.model));
    this.thread.mark(this.focus.get());
    this.#showList();
    this.#showExperts();
  }
  #showList() {
    this.sidebar.show(this.store.list(), this.conversation.id);
  }
  // Another tab changed something: perhaps what is shown here.
  #otherTab() {
    const kept = this.run ? null : this.store.load(this.conversation.id);
    if (!kept || kept.updated <= this.conversation.updated) return this.#showList();
    this.conversation = kept;
    this.refresh();
  }
  // The map is that of the answer that is pointed at, else of the last one.
  #showExperts() {
    if (!this.panel) return;
    const last = this.conversation.messages.findLast((m) => m.role === 'assistant');
    const id = this.focus.get()?.answer;
    const all = this.conversation.messages.flatMap((m) => m.answers ?? []);
    const answer = all.find((a) => a.id === id) ?? all.find((a) => a.id === this.pointed && this.traces.has(a.id)) ?? last?.answers[last.shown] ?? null;
    this.panel.show(answer, (answer && this.traces.get(answer.id)) ?? null, this.run !== null && this.run.answer === answer);
  }
  #focused(focus) {
    if (focus?.answer) this.pointed = focus.answer;  // the map stays at it when the pointer moves on to the map
    this.thread.mark(focus);
    this.#showExperts();
  }

  toggle(side, open = !byId('app').classList.contains(side + '-open')) {
    if (side === 'experts' && !this.panel) open = false;
    byId('app').classList.toggle(side + '-open', open);
    byId(side === 'sidebar' ? 'menu' : 'open-experts').setAttribute('aria-expanded', String(open));
    byId('veil').hidden = !byId('app').classList.contains('sidebar-open') || WIDE.matches;
    if (side === 'experts') this.panel?.redraw();
  }

  #pointAtTokens() {
    const tokenOf = (event) => {
      const span = event.target.closest?.('.tok');
      return span && {answer: span.closest('.answer').dataset.answer, token: Number(span.dataset.t)};
    };
    const thread = byId('thread');
    thread.addEventListener('pointerover', (event) => event.pointerType === 'mouse' && this.focus.hover(tokenOf(event) ?? null));
    thread.addEventListener('pointerleave', () => this.focus.hover(null));
    thread.addEventListener('click', (event) => {
      const token = tokenOf(event);
      if (!token || !getSelection().isCollapsed || event.target.closest('a')) return;
      this.focus.pin(token);
      if (event.pointerType === 'touch' && this.focus.pinned()) this.toggle('experts', true);
    });
  }

  #key(event) {
    if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
    if (this.run) this.stop();
    else if (!this.focus.clear() && !WIDE.matches) this.toggle('sidebar', false);
  }

  // --- conversations

  open(id) {
    const kept = this.run?.conversation.id === id ? this.run.conversation : this.store.load(id);
    if (!kept) return toast('This conversation cannot be read.');
    this.conversation = kept;
    this.#entered();
  }
  create() {
    this.conversation = newConversation();
    this.#entered();
  }
  #entered() {
    this.focus.clear();
    if (!WIDE.matches) this.toggle('sidebar', false);
    this.refresh();
    this.thread.goToEnd(true);
    this.composer.focus();
  }
  #change(id, change) {
    const conversation = id === this.conversation.id ? this.conversation : id === this.run?.conversation.id ? this.run.conversation : this.store.load(id);
    if (!conversation) return;
    change(conversation);
    this.store.save(conversation);
    this.refresh();
  }
  #changeMessage(i, values) {
    this.#change(this.conversation.id, (c) => Object.assign(c.messages[i], values));
  }
  remove(id) {
    const kept = this.store.load(id);
    if (this.run?.conversation.id === id) {
      this.run.dropped = true;  // its end must not bring the conversation back
      this.stop();
    }
    this.store.remove(id);
    if (id === this.conversation.id) this.conversation = newConversation();
    this.refresh();
    if (!kept) return;
    toast(`“${kept.title || 'New conversation'}” was deleted.`, {label: 'Undo', run: () => {
      this.store.save(kept);
      this.open(kept.id);
    }});
  }
  export(ids) {
    const all = ids.map((id) => this.store.load(id)).filter(Boolean);
    if (!all.length) return toast('There is nothing to export.');
    const name = (all.length === 1 ? all[0].title : '').replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-+|-+$/g, '').slice(0, 50);
    download(`${name || 'conversations'}.json`, {model: this.model, exported: new Date().toISOString(), conversations: all});
  }
  #storageFull() {
    if (this.warned) return;
    this.warned = true;  // once is enough
    toast('The browser keeps no more: export or delete conversations. This one lasts until the page is closed.');
  }

  editSettings() {
    editSettings({settings: this.settings, system: this.conversation.system, props: this.props, save: (settings, system) => {
      this.settings = settings;
      this.store.saveSettings(settings);
      this.conversation.system = system;
      if (this.conversation.messages.length) this.store.save(this.conversation);
      this.refresh();
    }});
  }

  // --- answers

  // Whether it was sent.
  send(text) {
    if (this.run) return false;
    const {messages} = this.conversation;
    const goOn = this.plain && text === '' && messages.length > 0;
    if (!goOn && text.trim() === '') return false;
    if (!goOn) messages.push({role: 'user', text: this.plain ? text : text.trim()});
    if (!this.conversation.named && !this.conversation.title) this.conversation.title = titleFrom(text);
    this.thread.follows = true;
    this.#answer(messages.length, null);
    return true;
  }
  edit(i, text) {
    if (this.run || text.trim() === '') return;
    this.#cutAfter(i);
    this.conversation.messages[i].text = this.plain ? text : text.trim();
    this.#answer(i + 1, null);
  }
  // Another answer in place of message i. With other experts than the one that is there, it is shown beside it, and has its
  // seed: then the experts make the whole difference.
  again(i) {
    if (this.run) return;
    this.#cutAfter(i);
    const message = this.conversation.messages[i];
    const old = message.answers[message.shown];
    if (old.error) {
      message.answers.splice(message.shown, 1);
      if (message.beside !== null && message.beside > message.shown) message.beside -= 1;
      return this.#answer(i, old);
    }
    const others = !sameOverrides(this.overrides.request(), old.overrides);
    message.beside = others ? message.shown : null;
    this.#answer(i, others ? old : null);
  }
  compare() {
    const i = this.conversation.messages.findLastIndex((m) => m.role === 'assistant');
    if (i < 0) return toast('There is no answer to compare with yet: the next ones have these experts off.');
    const message = this.conversation.messages[i];
    const whole = message.answers.findLastIndex((a) => !a.overrides && !a.error);  // compare with the model as it is
    if (whole >= 0 && !this.run) message.shown = whole;
    this.again(i);
  }
  stop() {
    this.run?.controller.abort();
  }

  // What comes after message i goes; it can be brought back.
  #cutAfter(i) {
    const {conversation} = this;
    const before = structuredClone(conversation.messages);
    if (conversation.messages.length <= i + 1) return;
    conversation.messages.length = i + 1;
    if (before.length <= i + 2 && before[i].role === 'user') return;  // only the answer, which is made again
    toast('Later messages were removed.', {label: 'Undo', run: () => {
      this.stop();
      conversation.messages = before;
      this.store.save(conversation);
      this.refresh();
    }});
  }

  // Message i of the conversation gets one more answer. like: an answer whose seed it has, or null.
  async #answer(i, like) {
    const {conversation} = this;
    const answer = newAnswer(like?.seed ?? this.settings.seed ?? randomSeed(), this.overrides.request());
    const trace = this.moe && this.settings.routing !== false ? new Trace(this.moe) : null;
    if (trace) this.traces.set(answer.id, trace);
    conversation.messages[i] ??= {role: 'assistant', answers: [], shown: 0, beside: null};
    const message = conversation.messages[i];
    message.answers.push(answer);
    message.shown = message.answers.length - 1;
    const run = {conversation, answer, controller: new AbortController()};
    this.run = run;
    this.pointed = null;
    this.#save(conversation);
    this.refresh();
    const request = requestFor({conversation, count: i, text: this.plain, settings: this.settings, answer, routing: trace !== null});
    let saved = performance.now();
    const show = perFrame(() => this.#progress(run));
    await fill(answer, {api: this.api, request, trace, signal: run.controller.signal, onChange: () => {
      show();
      if (run.dropped || performance.now() - saved < SAVE_EVERY) return;
      saved = performance.now();
      this.store.save(conversation);
    }});
    this.run = null;
    if (!run.dropped) this.#save(conversation);
    this.refresh();
    byId('announce').textContent = answer.error ?? answer.text;
  }
  #progress(run) {
    if (run.conversation !== this.conversation) return;
    this.thread.update(run.answer);
    const focus = this.focus.get();
    if (focus?.l !== undefined) this.thread.mark(focus);  // new tokens of that expert
    this.#showExperts();
  }
  #save(conversation) {
    conversation.updated = Date.now();
    this.store.save(conversation);
  }
  #overridesChanged() {
    const request = this.overrides.request();
    this.composer.setOverrides(request ? `${described(request)} in new answers` : '');
  }
}

new App();
