"""Fits the profile of NVIDIA GPUs on published points, and writes benchmarks/advise/gpus.md (`make advise-points`)."""

from __future__ import annotations

import argparse
from pathlib import Path

from pelton.advise.catalog import load
from pelton.advise.profile import FOLDER, save_profile

from .fit import fit_profile
from .page import page
from .points import plan_works, read_points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", type=Path, default=FOLDER / "fitted_nvidia.toml", help="file to write")
    parser.add_argument("--page", type=Path, default=Path(__file__).with_name("gpus.md"), help="file to write")
    args = parser.parse_args()
    points, catalog = read_points(), load()
    works = plan_works(points)
    save_profile(fit_profile(points, works, catalog), args.profile)
    args.page.write_text(page(points, works, args.profile, catalog))
    print(f"{args.profile}, {args.page}: {len(points)} points")


if __name__ == "__main__":
    main()
