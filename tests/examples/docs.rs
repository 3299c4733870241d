//! Writes the documents that are made from code: `make docs`.

use culvert_tests::harness::binaries::repository;
use culvert_tests::rules::{Program, config_page};

fn main() -> std::io::Result<()> {
    let programs = [
        Program {
            name: "culvert-node-proxy",
            variables: culvert_node_proxy::config::VARIABLES,
        },
        Program {
            name: "culvert-discovery",
            variables: culvert_discovery::config::VARIABLES,
        },
        Program {
            name: "culvert-ca",
            variables: culvert_ca::config::VARIABLES,
        },
        Program {
            name: "culvert-cni agent",
            variables: culvert_cni::config::VARIABLES,
        },
    ];
    std::fs::write(repository().join("docs/config.md"), config_page(&programs))
}
