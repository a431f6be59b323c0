"""The texts of a package for browsers and node: its entry, types, package.json, page and README."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton.engine.plan import EnginePlan, Port
from pelton.version import VERSION

ARRAYS = {
    **{"f64": "Float64Array", "f32": "Float32Array", "f16": "Uint16Array", "bf16": "Uint16Array", "bool": "Uint8Array"},
    **{"i64": "BigInt64Array", "u64": "BigUint64Array", "i32": "Int32Array", "u32": "Uint32Array"},
    **{"i16": "Int16Array", "u16": "Uint16Array", "i8": "Int8Array", "u8": "Uint8Array"},
}
FILES = Path(__file__).parent / "files"


def module(name: str, facts: Mapping[str, Any]) -> str:
    return f"""// {name}: an engine for WebAssembly, written by Pelton {VERSION}.
import * as pelton from "./pelton.mjs";

export const facts = {json.dumps(facts, indent=2)};

/** Loads the engine into this thread. */
export const load = (options) => pelton.load(facts, import.meta.url, options);

/** Starts a worker with the engine: its runs leave this thread free, and may share several. */
export const start = (options) => pelton.start(facts, import.meta.url, options);
"""


def types(name: str, plan: EnginePlan) -> str:
    inputs = "\n".join(_member(p, f"{ARRAYS[p.dtype]} | Tensor<{ARRAYS[p.dtype]}>") for p in plan.inputs)
    outputs = "\n".join(_member(p, _result(p)) for p in plan.outputs)
    return f"""// {name}: an engine for WebAssembly, written by Pelton {VERSION}.

/** An array in row-major order, with its shape. */
export interface Tensor<Data> {{
  data: Data;
  dims: readonly number[];
}}

/** Arrays; a size that is a name is dynamic: pass the shape where an input has several. */
export interface Inputs {{
{inputs}
}}

export interface Outputs {{
{outputs}
}}

export interface Port {{
  name: string;
  type: string;
  /** Numbers; names and expressions of dynamic sizes. */
  shape: (number | string)[];
  /** Where all sizes are known. */
  elements?: number;
  /** The shape that the engine was tuned for, where a size is dynamic. */
  optimum?: number[];
  /** The bounds of an input whose elements index a table. */
  indices?: {{ low: number; high: number; layer: string }};
}}
{INTERFACES}"""


def _member(port: Port, type_: str) -> str:
    return f"  /** {', '.join(map(str, port.shape))}; {port.dtype} */\n  {json.dumps(port.name)}: {type_};"


def _result(port: Port) -> str:
    array = ARRAYS[port.dtype]
    return f"Tensor<{array}>" if any(isinstance(d, str) for d in port.shape) else array


INTERFACES = """
interface Described {
  name: string;
  inputs: Port[];
  outputs: Port[];
  /** The level of its code: "relaxed" or "simd". */
  level: string;
}

export interface Engine extends Described {
  /** Runs the network once. Throws a TypeError or RangeError for arrays of another type or shape. */
  run(inputs: Inputs): Outputs;
}

export interface Remote extends Described {
  threads: number;
  /** Runs the network once. Runs wait for each other. */
  run(inputs: Inputs): Promise<Outputs>;
  /** Ends the worker and its threads, after the runs that it was asked for. */
  stop(): Promise<void>;
}

export interface Options {
  /** Called as the weights arrive, with bytes. */
  progress?: (loaded: number, total: number) => void;
}

/** Loads the engine into this thread. */
export function load(options?: Options): Promise<Engine>;

/** Starts a worker with the engine. More than one thread needs a page that is cross-origin isolated, or node. */
export function start(options?: Options & { threads?: number }): Promise<Remote>;
"""


def package(name: str) -> str:
    entry = {"types": f"./{name}.d.ts", "default": f"./{name}.mjs"}
    return (
        json.dumps(
            {
                "name": name.lower().replace("_", "-"),
                "version": "1.0.0",
                "description": f"An engine for WebAssembly, written by Pelton {VERSION}",
                "type": "module",
                "exports": {".": entry, "./*": "./*"},
                "types": f"./{name}.d.ts",
                "files": ["*.mjs", "*.d.ts", "*.wasm", "*.bin", "index.html"],
                "sideEffects": False,
            },
            indent=2,
        )
        + "\n"
    )


def page(name: str, plan: EnginePlan) -> str:
    return (FILES / "page.html").read_text("utf-8").replace("MODEL", name)


DYNAMIC = """ Sizes with a name are dynamic: an input is an array if at most one of its sizes is, and always may be
`{ data, dims }`, as outputs with such sizes are. Memory grows with the shapes and never shrinks."""


def readme(name: str, plan: EnginePlan, sizes: Mapping[str, int]) -> str:
    rows = "\n".join(f"| `{file}` | {size:,} |" for file, size in sizes.items())
    ports = "\n".join(
        f"| {kind} | `{p.name}` | `{ARRAYS[p.dtype]}` | {', '.join(map(str, p.shape))} |"
        for kind, ports in (("input", plan.inputs), ("output", plan.outputs))
        for p in ports
    )
    return f"""# {name}

An engine for browsers and node, written by Pelton {VERSION}.

```js
import {{ load, start }} from "./{name}.mjs";

const engine = await load(); // in this thread
const outputs = engine.run(inputs);

const remote = await start({{ threads: 4 }}); // in a worker
const same = await remote.run(inputs);
await remote.stop();
```

| | name | array | shape |
| --- | --- | --- | --- |
{ports}

Arrays are in row-major order.{DYNAMIC * bool(plan.symbols)}

`index.html` is a page that runs it: any server of files serves this folder, such as `python3 -m http.server`.
Several threads need a page that is cross-origin isolated: its server answers with

    Cross-Origin-Opener-Policy: same-origin
    Cross-Origin-Embedder-Policy: require-corp

| file | bytes |
| --- | --- |
{rows}

A browser loads one of the `.wasm` files: the best that it runs.
"""
