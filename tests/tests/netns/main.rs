//! Level netns: the real programs on real traffic between network namespaces.
//! Needs root. Each group brings its own mesh up and takes it down.

mod families;
mod foreign;
mod negative;
mod policy;
mod programs;
mod wire;

use std::process::ExitCode;

use culvert_tests::harness::mesh::{Mesh, MeshOptions};
use culvert_tests::harness::runner::Suite;

fn main() -> ExitCode {
    let mut suite = match Suite::start("netns") {
        Ok(suite) => suite,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    suite.group("wire", || pair("wire"), wire::TESTS);
    suite.group("negative", || pair("negative"), negative::TESTS);
    suite.group("policy", || pair("policy"), policy::TESTS);
    suite.group("programs", programs::up, programs::TESTS);
    suite.group("families", families::up, families::TESTS);
    suite.group("foreign", foreign::up, foreign::TESTS);
    suite.finish()
}

fn pair(name: &'static str) -> anyhow::Result<Mesh> {
    let set = vec!["accessLog=json"];
    Mesh::up_fixture(
        MeshOptions {
            name,
            nodes: 2,
            set,
        },
        "pair",
    )
}
