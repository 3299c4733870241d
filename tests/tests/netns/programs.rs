//! Real programs, unmodified, through the mesh.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_tests::harness::mesh::{LIMIT, Mesh, MeshOptions};
use culvert_tests::harness::runner::Test;
use culvert_tests::harness::wait::wait_for;

pub(crate) const TESTS: &[Test<Mesh>] = &[
    ("it_goes_through_the_mesh", it_goes_through_the_mesh),
    ("nginx_keep_alive", nginx_keep_alive),
    ("nginx_1_gb_download", nginx_1_gb_download),
    ("nginx_chunked_upload", nginx_chunked_upload),
    ("nginx_96_kb_header", nginx_96_kb_header),
    ("nginx_http_1_0", nginx_http_1_0),
    ("redis", redis),
    ("mariadb_speaks_first", mariadb_speaks_first),
    ("grpc_bidirectional_stream", grpc_bidirectional_stream),
    ("websocket", websocket),
    ("iperf3", iperf3),
    ("half_close_in_both_orders", half_close_in_both_orders),
];

/// A whole gigabyte through two development builds on two busy cores.
const LONG: Duration = Duration::from_secs(180);
const CLIENT: &str = "client.shop";

pub(crate) fn up(enrolled: bool) -> Result<Mesh> {
    let options = MeshOptions {
        enrolled,
        ..MeshOptions::new("programs", 2)
    };
    Mesh::up_fixture(options, "programs")
}

fn curl(mesh: &Mesh, words: &[&str]) -> Result<String> {
    let words: Vec<&str> = ["curl", "-sS", "--fail", "--max-time", "120"]
        .iter()
        .chain(words)
        .copied()
        .collect();
    Ok(mesh.exec_within(CLIENT, &words, LONG)?.succeeded()?.text())
}

fn it_goes_through_the_mesh(mesh: &Mesh) -> Result<()> {
    ensure!(
        curl(mesh, &["http://nginx/"])? == "hello from nginx\n",
        "not nginx's page"
    );
    wait_for("a tunnelled connection in the metrics", LIMIT, || {
        let labels = [
            ("connection_security_policy", "mutual_tls"),
            ("destination_workload", "nginx"),
        ];
        let opened = mesh
            .metrics("node-proxy/node-2")?
            .sum("istio_tcp_connections_opened_total", &labels);
        Ok((opened > 0.0).then_some(()))
    })
}

fn nginx_keep_alive(mesh: &Mesh) -> Result<()> {
    let url = "http://nginx.shop.svc.cluster.local/";
    let format = "%{num_connects} ";
    let words = ["-o", "/dev/null", "-w", format, url];
    let many: Vec<&str> = (0..20)
        .flat_map(|number| {
            let separator = if number == 0 { None } else { Some("--next") };
            separator.into_iter().chain(["-sS"]).chain(words)
        })
        .collect();
    let connects = curl(mesh, &many)?;
    let total: u32 = connects
        .split_whitespace()
        .filter_map(|word| word.parse::<u32>().ok())
        .sum();
    ensure!(
        total == 1,
        "20 requests took {total} connections: {connects}"
    );
    Ok(())
}

fn nginx_1_gb_download(mesh: &Mesh) -> Result<()> {
    let command = "set -e; curl -sS --fail --max-time 170 http://nginx/big | sha256sum";
    let through = mesh
        .exec_within(CLIENT, &["sh", "-c", command], LONG)?
        .succeeded()?
        .text();
    let file = mesh.manifests().work()?.join("www/big");
    let direct = mesh
        .exec_within(
            CLIENT,
            &["sh", "-c", &format!("sha256sum < {}", file.display())],
            LONG,
        )?
        .succeeded()?
        .text();
    ensure!(
        through == direct,
        "the download differs: {through} {direct}"
    );
    Ok(())
}

fn nginx_chunked_upload(mesh: &Mesh) -> Result<()> {
    let work = mesh.manifests().work()?;
    let command = format!(
        "head -c 52428800 /dev/urandom > {work}/upload && curl -sS --fail --max-time 100 -T - \
         -H 'Transfer-Encoding: chunked' -H 'Expect:' http://nginx/upload < {work}/upload",
        work = work.display()
    );
    let said = mesh
        .exec_within(CLIENT, &["sh", "-c", &command], LONG)?
        .succeeded()?
        .text();
    let stored = std::fs::read(said.trim()).with_context(|| said.clone())?;
    let sent = std::fs::read(work.join("upload"))?;
    ensure!(
        sent == stored,
        "nginx stored {} of {} bytes",
        stored.len(),
        sent.len()
    );
    Ok(())
}

fn nginx_96_kb_header(mesh: &Mesh) -> Result<()> {
    let file = mesh.manifests().work()?.join("header");
    let value = "h".repeat(96 * 1024);
    std::fs::write(&file, format!("x-long: {value}"))?;
    let said = curl(
        mesh,
        &["-H", &format!("@{}", file.display()), "http://nginx/peer"],
    )?;
    let client = mesh.pod(CLIENT)?;
    let (peer, echoed) = said
        .trim_end()
        .split_once(' ')
        .context("address and header")?;
    ensure!(
        echoed == value,
        "the header came back with {} bytes",
        echoed.len()
    );
    ensure!(
        client.addresses.iter().any(|address| address == peer),
        "nginx saw {peer}"
    );
    Ok(())
}

fn nginx_http_1_0(mesh: &Mesh) -> Result<()> {
    let page = curl(mesh, &["--http1.0", "http://nginx/"])?;
    ensure!(page == "hello from nginx\n", "{page:?}");
    Ok(())
}

fn redis(mesh: &Mesh) -> Result<()> {
    let said = |words: &[&str]| -> Result<String> {
        let words: Vec<&str> = ["redis-cli", "-h", "redis.shop"]
            .iter()
            .chain(words)
            .copied()
            .collect();
        Ok(mesh
            .exec(CLIENT, &words)?
            .succeeded()?
            .text()
            .trim()
            .to_owned())
    };
    ensure!(said(&["ping"])? == "PONG", "no pong");
    let value = "v".repeat(100_000);
    ensure!(said(&["set", "key", &value])? == "OK", "set failed");
    ensure!(said(&["get", "key"])? == value, "get differs");
    let bench = [
        "redis-benchmark",
        "-h",
        "redis.shop",
        "-n",
        "5000",
        "-c",
        "20",
        "-t",
        "set,get",
        "-P",
        "8",
        "-q",
    ];
    mesh.exec_within(CLIENT, &bench, LONG)?
        .succeeded()
        .map(drop)
}

fn mariadb_speaks_first(mesh: &Mesh) -> Result<()> {
    let sql = "CREATE OR REPLACE TABLE t (n INT, s LONGTEXT); \
        INSERT INTO t SELECT seq, REPEAT(CHAR(97 + seq % 26), 2000) FROM seq_1_to_5000; \
        SELECT COUNT(*), SUM(n), SUM(LENGTH(s)) FROM t;";
    let words = [
        "mariadb",
        "--no-defaults",
        "-h",
        "mariadb.shop",
        "-u",
        "shop",
        "-psecret",
        "-N",
        "shop",
        "-e",
        sql,
    ];
    let said = wait_for("an answer of the database", LONG, || {
        let said = mesh.exec_within(CLIENT, &words, LONG)?.succeeded()?;
        Ok(Some(said.text()))
    })?;
    ensure!(
        said.split_whitespace().collect::<Vec<_>>() == ["5000", "12502500", "10000000"],
        "{said}"
    );
    let all = [
        "mariadb",
        "--no-defaults",
        "-h",
        "mariadb.shop",
        "-u",
        "shop",
        "-psecret",
        "-N",
        "shop",
        "-e",
        "SELECT s FROM t",
    ];
    let rows = mesh.exec_within(CLIENT, &all, LONG)?.succeeded()?;
    ensure!(
        rows.out.len() == 5000 * 2001,
        "{} bytes of rows",
        rows.out.len()
    );
    Ok(())
}

fn grpc_bidirectional_stream(mesh: &Mesh) -> Result<()> {
    mesh.testkit_within(CLIENT, &["grpc", "small.shop:7001"], LONG)?
        .succeeded()
        .map(drop)
}

fn websocket(mesh: &Mesh) -> Result<()> {
    mesh.testkit(CLIENT, &["websocket", "small.shop:7002"])?
        .succeeded()
        .map(drop)
}

fn iperf3(mesh: &Mesh) -> Result<()> {
    for extra in [&[][..], &["--reverse"], &["--parallel", "4"]] {
        let words: Vec<&str> = ["iperf3", "--client", "small.shop", "--time", "2", "--json"]
            .iter()
            .chain(extra)
            .copied()
            .collect();
        let report: serde_json::Value = mesh.exec_within(CLIENT, &words, LONG)?.json()?;
        let bytes = report["end"]["sum_received"]["bytes"]
            .as_f64()
            .context("bytes")?;
        ensure!(bytes > 1e6, "iperf3 moved {bytes} bytes with {extra:?}");
    }
    Ok(())
}

fn half_close_in_both_orders(mesh: &Mesh) -> Result<()> {
    let words = ["half-close", "small.shop", "7010", "1000000"];
    mesh.testkit_within(CLIENT, &words, LONG)?
        .succeeded()
        .map(drop)
}
