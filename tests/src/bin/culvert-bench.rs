//! `make bench`: see `culvert_tests::bench`.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    culvert_tests::bench::run(&culvert_tests::bench::BenchOptions::parse())
}
