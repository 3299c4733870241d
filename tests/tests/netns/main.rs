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
    // `--mesh off` runs the programs without one: is it the mesh, or the test?
    let enrolled = suite.value("mesh") != Some("off");
    suite.group("wire", || pair("wire"), wire::TESTS);
    suite.group("negative", || pair("negative"), negative::TESTS);
    suite.group("policy", || pair("policy"), policy::TESTS);
    suite.group("programs", || programs::up(enrolled), programs::TESTS);
    suite.group("families", || families::up(enrolled), families::TESTS);
    suite.group("foreign", || foreign::up(enrolled), foreign::TESTS);
    suite.finish()
}

fn pair(name: &'static str) -> anyhow::Result<Mesh> {
    Mesh::up_fixture(MeshOptions::new(name, 2).with("accessLog=json"), "pair")
}
