//! The small programs that run in pods: see `culvert_tests::kit`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use culvert_tests::kit::{conversation, grpc, half_close, hold, load, rate, websocket};

#[derive(Debug, Parser)]
#[command(about = "servers, clients and load for tests of a mesh")]
struct Arguments {
    #[command(subcommand)]
    program: Program,
}

#[derive(Debug, Subcommand)]
enum Program {
    /// Greets with NAME and the client's address, then echoes.
    Serve { port: u16, name: String },
    /// Talks to `serve` and prints the greeting as JSON.
    Talk {
        target: String,
        #[arg(long, default_value_t = 30)]
        limit: u64,
    },
    /// Serves both orders of half-close on three ports.
    HalfCloseServe { port: u16, bytes: usize },
    /// Checks both orders of half-close.
    HalfClose {
        host: String,
        port: u16,
        bytes: usize,
    },
    /// New connections at a steady rate; prints a report as JSON.
    Load(load::LoadOptions),
    /// HTTP requests at a steady rate; prints a report as JSON.
    Rate(rate::RateOptions),
    /// Opens connections and holds them until a file appears.
    Hold {
        target: String,
        connections: usize,
        stop: PathBuf,
        /// Made when all are open.
        #[arg(long)]
        held: Option<PathBuf>,
    },
    /// Keeps one connection in use until a file appears.
    Watch { target: String, stop: PathBuf },
    /// A gRPC bidirectional stream.
    GrpcServe { port: u16 },
    /// Checks the gRPC stream.
    Grpc {
        target: String,
        #[arg(long, default_value_t = 500)]
        lines: u32,
    },
    /// A WebSocket echo.
    WebsocketServe { port: u16 },
    /// Checks the WebSocket echo.
    Websocket { target: String },
}

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    // Servers of thousands of connections run under the usual soft limit.
    culvert_runtime::raise_file_limit()?;
    match Arguments::parse().program {
        Program::Serve { port, name } => conversation::serve(port, &name),
        Program::Talk { target, limit } => {
            print(&conversation::talk(&target, Duration::from_secs(limit))?)
        }
        Program::HalfCloseServe { port, bytes } => half_close::serve(port, bytes),
        Program::HalfClose { host, port, bytes } => half_close::check(&host, port, bytes, LIMIT),
        Program::Load(options) => print(&load::run(&options)?),
        Program::Rate(options) => print(&rate::run(&options)?),
        Program::Hold {
            target,
            connections,
            stop,
            held,
        } => hold::run(&target, connections, &stop, held.as_deref()),
        Program::Watch { target, stop } => hold::watch(&target, &stop),
        Program::GrpcServe { port } => block_on(grpc::serve(port)),
        Program::Grpc { target, lines } => block_on(grpc::check(&target, lines, LIMIT)),
        Program::WebsocketServe { port } => websocket::serve(port),
        Program::Websocket { target } => websocket::check(&target, LIMIT),
    }
}

fn print(report: &impl serde::Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}

fn block_on(program: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(program)
}
