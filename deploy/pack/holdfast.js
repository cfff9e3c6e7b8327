#!/usr/bin/env node
// Runs the program of this platform, which is in an optional package of its own. Where Node.js can (22.15 and later, but for
// Windows) the program takes the place of this process: it has the same process id, and all signals are its own. Else it is a
// child, which gets the signals that this process gets. It also ends by itself when this process is killed: HOLDFAST_LAUNCHER
// tells it which parent to watch. So does it when npx is: npx passes signals to a shell, which does not pass them on.
"use strict";
const fs = require("fs");
const { spawn } = require("child_process");
const { optionalDependencies } = require("../package.json");

function fail(text) {
  process.stderr.write("holdfast: " + text + "\n");
  process.exit(1);
}

function find() {
  const name = `holdfast-${process.platform}-${process.arch}`;
  if (!(name in optionalDependencies)) {
    fail(`there is no program for ${process.platform} ${process.arch} in npm's packages, only for ` +
      Object.keys(optionalDependencies).map((n) => n.replace(/^holdfast-/, "").replace("-", " ")).join(", ") +
      ": build it with Go, as docs/install.md says");
  }
  try {
    return require.resolve(`${name}/bin/holdfast${process.platform === "win32" ? ".exe" : ""}`);
  } catch {
    fail(`the package ${name}, which has the program for this platform, is not installed: install holdfast again without ` +
      "--omit=optional (--no-optional), and not with node_modules from another platform");
  }
}

const program = find();
const args = process.argv.slice(2);
const windows = process.platform === "win32";

if (!windows) {
  try {
    fs.accessSync(program, fs.constants.X_OK);
  } catch {
    try {
      fs.chmodSync(program, 0o755); // some tools unpack without modes
    } catch (e) {
      fail(`${program} cannot be run: ${e.message}`);
    }
  }
}

const { npm_lifecycle_event, npm_lifecycle_script = "" } = process.env;
const byNpx = !windows && npm_lifecycle_event === "npx" && npm_lifecycle_script.includes("holdfast");
const parent = process.ppid;

if (process.execve && !windows) {
  process.emitWarning = () => {}; // that it is experimental
  process.execve(program, [program, ...args], byNpx ? { ...process.env, HOLDFAST_LAUNCHER: String(parent) } : process.env);
}

const child = spawn(program, args, { stdio: "inherit", env: { ...process.env, HOLDFAST_LAUNCHER: String(process.pid) } });
if (byNpx) {
  const watch = setInterval(() => {
    if (process.ppid !== parent) {
      clearInterval(watch);
      child.kill("SIGTERM");
    }
  }, 500);
}
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", windows ? "SIGBREAK" : "SIGQUIT"]) {
  // On Windows a signal is an event of the console, which the child gets by itself.
  process.on(signal, () => windows || child.kill(signal));
}
child.on("error", (e) => fail(`${program} cannot be run: ${e.message}`));
child.on("exit", (code, signal) => {
  if (!signal) {
    process.exit(code);
  }
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
