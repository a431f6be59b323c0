"""`pelton serve`: serves models over HTTP and gRPC."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pelton.errors import InputError, Needs

from . import parsers

EXAMPLES = """examples:
  pelton serve model.pelton                       http://127.0.0.1:8000/v2/models/model/infer, gRPC on 8001
  pelton serve models/                            a repository: models/NAME/VERSION/model.pelton, watched for changes
  pelton serve model.gguf                         a language model: http://127.0.0.1:8000/v1/chat/completions
  pelton serve models/ --slo 20ms                 batches that keep the answer within 20 ms; late requests are refused
  pelton serve models/ --host 0.0.0.0 --token-file token.txt --tls-cert cert.pem --tls-key key.pem
  pelton serve models/ --model-control explicit --load-model resnet50        clients load and unload models

Clients: tritonclient, the REST calls of TensorFlow Serving, any client of the Open Inference Protocol; for language
models those of OpenAI, with base_url http://127.0.0.1:8000/v1. The metrics on port 8002 are for Prometheus. Stops on
SIGTERM or Ctrl-C once all requests are answered."""


def milliseconds(text: str) -> float:
    """Parses a duration such as 20ms or 0.5s, in seconds."""
    for unit, scale in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)):
        if text.endswith(unit):
            return parsers.positive(text.removesuffix(unit)) * scale
    raise argparse.ArgumentTypeError(f"expected a duration such as 20ms, got {text!r}")


def batch(text: str) -> str | int:
    """Parses "auto", "off", or a number of rows."""
    return text if text in ("auto", "off") else parsers.int_in_range(1, 1 << 16, "auto, off, or rows")(text)


def destination(text: str) -> str:
    """Parses where traces go: "otlp", or a URL."""
    scheme, _, rest = text.partition("://")
    if text != "otlp" and (scheme not in ("http", "https") or not rest.partition("/")[0]):
        raise argparse.ArgumentTypeError(f"expected otlp, or a URL such as http://127.0.0.1:4318, got {text!r}")
    return text


def part(text: str) -> float:
    """Parses a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return number


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "serve",
        help="serve models over HTTP and gRPC",
        description="Serves engines and models by the Open Inference Protocol and TensorFlow Serving's REST calls, and"
        " language models by OpenAI's.",
        epilog=EXAMPLES,
    )
    command.add_argument(
        "models", nargs="+", type=Path, help="engines, models, language models (GGUF, folders), or repositories"
    )
    _add_network(command.add_argument_group("network"))
    _add_models(command.add_argument_group("models"))
    _add_running(command.add_argument_group("running"))
    _add_language(command.add_argument_group("language models"))
    _add_limits(command.add_argument_group("limits"))
    _add_traces(command.add_argument_group("traces"))
    return command


def _add_network(network: argparse._ActionsContainer) -> None:
    port = parsers.int_in_range(0, 65535, "a port")
    network.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    network.add_argument("--http-port", type=port, default=8000, metavar="PORT", help="default 8000")
    network.add_argument("--grpc-port", type=port, default=8001, metavar="PORT", help="default 8001")
    network.add_argument("--metrics-port", type=port, default=8002, metavar="PORT", help="default 8002")
    network.add_argument("--no-http", action="store_true", help="serve no HTTP")
    network.add_argument("--no-grpc", action="store_true", help="serve no gRPC")
    network.add_argument("--no-metrics", action="store_true", help="serve no metrics")
    network.add_argument("--unix", metavar="PATH", help="listen on a socket file, too; gRPC on PATH.grpc")
    network.add_argument("--name", default="pelton", help="name of the server in its metadata (default pelton)")
    network.add_argument("--token-file", type=Path, metavar="FILE", help="require the bearer token in this file")
    network.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain (PEM): serve HTTPS")
    network.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of the certificate (PEM)")
    network.add_argument(
        "--tls-client-ca", type=Path, metavar="FILE", help="require certificates of clients, of this CA"
    )
    network.add_argument(
        "--cors-origin", action="append", default=[], metavar="URL", help="allow pages of this origin (repeatable)"
    )


def _add_models(models: argparse._ActionsContainer) -> None:
    models.add_argument(
        "--model-control",
        choices=("none", "poll", "explicit"),
        default="poll",
        help="poll (default): watch the folders; explicit: clients load and unload; none: as at the start",
    )
    models.add_argument(
        "--load-model",
        action="append",
        default=[],
        metavar="NAME",
        help="load at the start of explicit control; * for all",
    )
    models.add_argument("--poll-seconds", type=parsers.positive, default=1.0, metavar="S", help="default 1")
    models.add_argument(
        "--trust", action="append", default=[], metavar="KEY", help="load only engines signed by this key"
    )


def _add_running(running: argparse._ActionsContainer) -> None:
    running.add_argument(
        "--batch",
        type=batch,
        default="auto",
        help="auto (default): batches where measuring shows that they pay; off; or the most rows",
    )
    running.add_argument(
        "--slo", type=milliseconds, metavar="TIME", help="time from a request to its answer, such as 20ms"
    )
    running.add_argument(
        "--jobs", type=parsers.int_in_range(1, 256, "jobs"), metavar="N", help="runs at once, per model"
    )
    running.add_argument("--threads", type=parsers.int_in_range(1, 256, "threads"), metavar="N", help="threads per run")
    running.add_argument(
        "--queue",
        type=parsers.int_in_range(1, 1 << 20, "rows"),
        default=4096,
        metavar="ROWS",
        help="most waiting rows",
    )
    running.add_argument(
        "--workers",
        type=parsers.int_in_range(1, 256, "processes"),
        default=1,
        metavar="N",
        help="processes behind one port (default 1); worker i has its metrics on --metrics-port + i",
    )
    running.add_argument(
        "--response-cache",
        type=parsers.size,
        default=0,
        metavar="SIZE",
        help="cache of answers, where models enable it",
    )


def _add_language(language: argparse._ActionsContainer) -> None:
    tokens = parsers.int_in_range(2, 1 << 30, "tokens")
    language.add_argument(
        "--sequences",
        type=parsers.int_in_range(1, 64, "answers"),
        default=4,
        metavar="N",
        help="answers at once (default 4)",
    )
    language.add_argument(
        "--context",
        type=tokens,
        metavar="N",
        help="tokens of a prompt with its answer (default the model's, up to 4096)",
    )
    language.add_argument("--kv-cache", choices=("fp32", "fp16", "int8"), help="type of caches (default fp32)")
    language.add_argument(
        "--max-tokens", type=tokens, metavar="N", help="most tokens of an answer (default as many as fit)"
    )
    language.add_argument(
        "--max-waiting",
        type=parsers.int_in_range(0, 1 << 20, "answers"),
        default=64,
        metavar="N",
        help="answers that wait for one of --sequences (default 64); further ones are refused with status 429",
    )
    language.add_argument(
        "--answer-seconds", type=parsers.seconds, default=600.0, metavar="S", help="until an answer ends (default 600)"
    )


def _add_limits(limits: argparse._ActionsContainer) -> None:
    limits.add_argument(
        "--http-max-input-size",
        type=parsers.size,
        default=64 << 20,
        metavar="SIZE",
        help="bytes of a request (64MiB)",
    )
    limits.add_argument(
        "--max-requests",
        type=parsers.int_in_range(1, 1 << 20, "requests"),
        default=1024,
        metavar="N",
        help="under way at once",
    )
    limits.add_argument("--drain", type=parsers.seconds, default=30.0, metavar="S", help="wait for requests at the end")


def _add_traces(traces: argparse._ActionsContainer) -> None:
    traces.add_argument(
        "--traces",
        type=destination,
        metavar="URL",
        help="send OpenTelemetry traces by OTLP over HTTP, such as http://127.0.0.1:4318; otlp: where the variable"
        " OTEL_EXPORTER_OTLP_ENDPOINT says (default: none are sent)",
    )
    traces.add_argument(
        "--trace-rate", type=part, metavar="PART", help="part of the requests to trace, such as 0.01 (default all)"
    )


def main(args: argparse.Namespace) -> None:
    with Needs("serving", InputError):
        from pelton.serve.options import ServeOptions
        from pelton.serve.workers import serve_all
    if (args.tls_cert is None) != (args.tls_key is None):
        raise InputError("--tls-cert and --tls-key go together: give both, or neither")
    if args.trace_rate is not None and args.traces is None:
        raise InputError("--trace-rate needs --traces: give the URL of a collector, or otlp")
    for path in (args.tls_cert, args.tls_key, args.tls_client_ca, args.token_file):
        if path is not None and not os.access(path, os.R_OK):
            raise InputError(f"{path} cannot be read")
    token = None if args.token_file is None else args.token_file.read_text().strip()
    if token == "":
        raise InputError(f"{args.token_file} holds no token: write one line")
    serve_all(
        ServeOptions(
            models=tuple(args.models),
            host=args.host,
            http_port=args.http_port,
            grpc_port=args.grpc_port,
            metrics_port=args.metrics_port,
            http=not args.no_http,
            grpc=not args.no_grpc,
            metrics=not args.no_metrics,
            unix=args.unix,
            name=args.name,
            control=args.model_control,
            startup=tuple(args.load_model),
            poll=args.poll_seconds,
            batch=args.batch,
            slo=args.slo,
            jobs=args.jobs,
            threads=args.threads,
            bound=args.queue,
            sequences=args.sequences,
            context=args.context,
            kv_cache=args.kv_cache,
            max_tokens=args.max_tokens,
            waiting=args.max_waiting,
            answer_seconds=args.answer_seconds,
            body=args.http_max_input_size,
            requests=args.max_requests,
            drain=args.drain,
            cache=args.response_cache,
            token=token,
            origins=tuple(args.cors_origin),
            certificate=args.tls_cert,
            key=args.tls_key,
            client_ca=args.tls_client_ca,
            trust=tuple(args.trust),
            workers=args.workers,
            traces=args.traces,
            trace_rate=args.trace_rate,
        ),
        ready=lambda line: print(f"serving on {line}", flush=True),
    )
