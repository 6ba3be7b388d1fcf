// graphile-worker on a PostgreSQL server: the same work as in targets.rs. Prints a line of figures:
// jobs a second by 32 callers, in batches of 1000, delivered; lateness in ms, median and p99.
"use strict";
const [folder, parameters] = process.argv.slice(2);
const { createRequire } = require("node:module");
const load = createRequire(folder + "/package.json");
const { run, makeWorkerUtils, Logger } = load("graphile-worker");
const { Pool } = load("pg");

const setting = (name) => new RegExp(name + "=(\\S+)").exec(parameters)[1];
const pool = () =>
  new Pool({ host: setting("host"), port: Number(setting("port")), user: setting("user"), database: setting("dbname"), max: 32 });
const logger = new Logger(() => () => {});
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const quantile = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];

async function main() {
  const pgPool = pool();
  const utils = await makeWorkerUtils({ pgPool, logger });
  await utils.migrate();
  const year = () => new Date(Date.now() + 365 * 86400e3);
  const span = 3000;

  let count = 0;
  let start = Date.now();
  await Promise.all(
    Array.from({ length: 32 }, async () => {
      while (Date.now() - start < span) {
        await utils.addJob("later", { payload: "payload" }, { runAt: year() });
        count++;
      }
    }),
  );
  const callers = (count * 1000) / (Date.now() - start);

  count = 0;
  start = Date.now();
  while (Date.now() - start < span) {
    const jobs = Array.from({ length: 1000 }, () => ({ identifier: "later", payload: { payload: "payload" }, runAt: year() }));
    await utils.addJobs(jobs);
    count += 1000;
  }
  const batches = (count * 1000) / (Date.now() - start);

  const total = 20000;
  for (let n = 0; n < total; n += 1000) {
    await utils.addJobs(Array.from({ length: 1000 }, () => ({ identifier: "now", payload: { payload: "payload" } })));
  }
  let done = 0;
  const late = [];
  const taskList = {
    now: async () => { done++; },
    soon: async (payload) => { late.push(Date.now() - payload.due); },
  };
  const runner = await run({
    pgPool: pool(), logger, taskList, noHandleSignals: true, concurrency: 16, pollInterval: 100,
    preset: { worker: { concurrentJobs: 16, pollInterval: 100, localQueue: { size: 500 }, completeJobBatchDelay: 0 } },
  });
  start = Date.now();
  const before = done;
  while (done < total) await sleep(5);
  const deliveries = ((total - before) * 1000) / (Date.now() - start);

  const first = Date.now() + 2000;
  await utils.addJobs(
    Array.from({ length: 1000 }, (_, n) => ({ identifier: "soon", payload: { due: first + 4 * n }, runAt: new Date(first + 4 * n) })),
  );
  while (late.length < 1000) await sleep(20);
  late.sort((a, b) => a - b);
  await runner.stop();
  console.log([callers, batches, deliveries, quantile(late, 0.5), quantile(late, 0.99)].map((x) => x.toFixed(3)).join(" "));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
