// A peer on the JavaScript SDK: `node agent.mjs [--port=N] [--rest-first]`. What it does is told in ../__init__.py.
import { EventEmitter, once } from 'node:events';
import { parseArgs } from 'node:util';
import { Role, TaskState } from '@a2a-js/sdk';
import {
  AgentEvent, DefaultPushNotificationSender, DefaultRequestHandler, InMemoryPushNotificationStore, InMemoryTaskStore,
} from '@a2a-js/sdk/server';
import { agentCardHandler, jsonRpcHandler, restHandler, UserBuilder } from '@a2a-js/sdk/server/express';
import express from 'express';

const HOST = '127.0.0.1';
const LINK = 'https://files.example.com/report.pdf';
const { values: options } = parseArgs({
  options: { port: { type: 'string', default: '0' }, 'rest-first': { type: 'boolean', default: false } },
});

const part = ($case, value, mediaType = '', filename = '') => (
  { content: { $case, value }, mediaType, filename, metadata: undefined });
const textOf = (message) => message.parts
  .map(({ content }) => (content?.$case === 'text' ? content.value : '')).join('\n');

class Executor {
  #talks = new Map();
  #gates = new EventEmitter().setMaxListeners(0);

  goOn(contextId) {
    this.#gates.emit(contextId);
  }

  async execute({ taskId, contextId, userMessage, task }, bus) {
    const text = textOf(userMessage);
    if (text.startsWith('say ')) {
      bus.publish(AgentEvent.message(this.#message('', contextId, text.slice(4))));
      return;
    }
    if (task) {
      this.#talks.get(taskId).answers.push(text);
    } else {
      const steps = text.split(';').map((step) => step.trim().split(/ (.*)/s));
      this.#talks.set(taskId, { contextId, steps, answers: [], isDeaf: false, isWorking: false, isCanceled: false });
    }
    // The SDK wants a task before any update, on follow-ups as well.
    bus.publish(AgentEvent.task(task ?? {
      id: taskId, contextId, artifacts: [], history: [userMessage], metadata: undefined,
      status: this.#status(TaskState.TASK_STATE_SUBMITTED),
    }));
    await this.#continue(this.#talks.get(taskId), taskId, bus);
  }

  async #continue(talk, taskId, bus) {
    const { contextId, steps, answers } = talk;
    const become = (state, said) => bus.publish(AgentEvent.statusUpdate({
      taskId, contextId, metadata: undefined,
      status: this.#status(state, said && this.#message(taskId, contextId, said)),
    }));
    const make = (name, parts) => bus.publish(AgentEvent.artifactUpdate({
      taskId, contextId, append: false, lastChunk: true, metadata: undefined,
      artifact: { artifactId: crypto.randomUUID(), name, description: '', parts, metadata: undefined, extensions: [] },
    }));
    while (steps.length) {
      const [verb, text] = steps.shift();
      if (verb === 'ask') return become(TaskState.TASK_STATE_INPUT_REQUIRED, text);
      if (verb === 'fail') return become(TaskState.TASK_STATE_FAILED, text);
      if (verb === 'reject') return become(TaskState.TASK_STATE_REJECTED, text);
      if (verb === 'deaf') talk.isDeaf = true;
      if (verb === 'make') make('report', madeParts(text));
      if (verb === 'hold') {
        const gate = once(this.#gates, contextId);
        talk.isWorking = true;
        become(TaskState.TASK_STATE_WORKING);
        await gate;
        talk.isWorking = false;
        if (talk.isCanceled) return become(TaskState.TASK_STATE_CANCELED);
      }
    }
    if (answers.length) make('answers', [part('text', answers.join(' and '))]);
    return become(TaskState.TASK_STATE_COMPLETED);
  }

  // The SDK's CancelTask answers when CANCELED is published, and waits for ever if it is not.
  async cancelTask(taskId, bus) {
    const talk = this.#talks.get(taskId);
    if (talk.isDeaf) return;
    talk.isCanceled = true;
    if (talk.isWorking) return this.goOn(talk.contextId);
    bus.publish(AgentEvent.statusUpdate({
      taskId, contextId: talk.contextId, metadata: undefined, status: this.#status(TaskState.TASK_STATE_CANCELED),
    }));
    bus.finished();
  }

  #status(state, message) {
    return { state, message: message || undefined, timestamp: new Date().toISOString() };
  }

  #message(taskId, contextId, said) {
    return {
      messageId: crypto.randomUUID(), taskId, contextId, role: Role.ROLE_AGENT, parts: [part('text', said)],
      metadata: undefined, extensions: [], referenceTaskIds: [],
    };
  }
}

function madeParts(text) {
  return [
    part('text', text),
    part('data', { made: text }, 'application/json'),
    part('raw', Buffer.from(text), 'text/plain', '../report.txt'),
    part('url', LINK, 'application/pdf', 'report.pdf'),
  ];
}

function buildCard(base) {
  const interfaces = [['/rpc', 'JSONRPC'], ['/rest', 'HTTP+JSON']].map(([path, protocolBinding]) => (
    { url: base + path, protocolBinding, protocolVersion: '1.0', tenant: '' }));
  return {
    name: 'js peer', description: 'On the JavaScript SDK', version: '1.0.0', provider: undefined,
    supportedInterfaces: options['rest-first'] ? interfaces.reverse() : interfaces,
    capabilities: { streaming: true, pushNotifications: true, extendedAgentCard: false, extensions: [] },
    securitySchemes: {}, securityRequirements: [], signatures: [],
    defaultInputModes: ['text/plain'], defaultOutputModes: ['text/plain'],
    skills: [{
      id: 'obey', name: 'obey', description: 'does what the text says', tags: ['test'],
      examples: [], inputModes: [], outputModes: [], securityRequirements: [],
    }],
  };
}

function record(seen) {
  const readBody = express.raw({ type: () => true, limit: '10mb' });
  return (req, res, next) => readBody(req, res, (error) => {
    const raw = Buffer.isBuffer(req.body) ? req.body.toString() : '';
    const entry = { method: req.method, path: req.path, headers: req.headers, body: raw, res, ended: null };
    seen.push(entry);
    res.on('close', () => { entry.ended = res.writableFinished ? 'agent' : 'client'; });
    if (raw) req.body = JSON.parse(raw);
    next(error);
  });
}

const shown = ({ res, ...entry }) => (
  { ...entry, status: res.statusCode, stream: String(res.getHeader('content-type')).startsWith('text/event-stream') });

const app = express();
const server = app.listen(Number(options.port), HOST, () => {
  const base = `http://${HOST}:${server.address().port}`;
  const [seen, executor, pushes] = [[], new Executor(), new InMemoryPushNotificationStore()];
  const requestHandler = new DefaultRequestHandler(
    buildCard(base), new InMemoryTaskStore(), executor, undefined, pushes, new DefaultPushNotificationSender(pushes));
  const served = { requestHandler, userBuilder: UserBuilder.noAuthentication };
  app.get('/_seen', (req, res) => res.json(seen.map(shown)));
  app.post('/_go/:context', (req, res) => { executor.goOn(req.params.context); res.json({}); });
  app.use(record(seen));
  app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: requestHandler }));
  app.use('/rpc', jsonRpcHandler(served));
  app.use('/rest', restHandler(served));
  console.log(JSON.stringify({ ready: base }));
});
