//! Compiles the .proto files without a system protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = [
        "discovery.proto",
        "workload.proto",
        "authorization.proto",
        "culvert.proto",
        "ca.proto",
        "zds.proto",
        "keeper.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".istio.workload.Workload.addresses")
        // Content hashes are taken over encoded workloads: maps need an order.
        .btree_map(".istio.workload.Workload.services")
        .compile_fds(descriptors)?;
    Ok(())
}
