//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::engine::kubelet::images::parse_image;
use crate::state::STATE_ROOT;

/// A service mesh without sidecars.
#[derive(Debug, Parser)]
#[command(name = "culvert", version, about, max_term_width = 100)]
pub struct Arguments {
    /// Which mesh of this machine
    #[arg(long, global = true, default_value = "default", value_name = "NAME")]
    pub mesh: String,
    /// Where the state of all meshes of this machine is
    #[arg(long, global = true, default_value = STATE_ROOT, value_name = "DIR", hide = true)]
    pub state_root: PathBuf,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring up the objects of a directory, with a mesh, on this machine
    Up(Up),
    /// Take everything of the mesh off this machine, also after a crash
    Down(Down),
    /// Show objects
    Get(Get),
    /// Run a command in a pod
    Exec(Exec),
    /// Show the output of a pod
    Logs(Logs),
    /// Delete an object
    Delete(Delete),
    /// Change the number of replicas
    Scale(Scale),
    /// Show nodes, programs, enrolled pods, policies and recent refusals
    Status(Format),
    /// Show what a program of the mesh works with
    Config(Target),
    /// Show certificates and when they expire
    Certs(Format),
    /// Look after the certificate authority
    #[command(subcommand)]
    Ca(Ca),
    /// Show metrics of a program or of a pod
    Metrics(Metrics),
    /// Check every precondition, and the health of every part
    Check(Check),
    /// Print a completion script
    Completion {
        /// For which shell
        shell: Shell,
    },
    /// Print the version
    Version,
    /// The background process behind `up`
    #[command(hide = true)]
    Engine {
        /// The state directory of the mesh
        directory: PathBuf,
    },
    /// The DNS server behind `up`
    #[command(hide = true)]
    Dns(Dns),
    /// Become a program in a network namespace
    #[command(hide = true)]
    Run(Run),
    /// Give up root and become a program
    #[command(hide = true, name = "run-as")]
    RunAs {
        /// UID:GID
        user: String,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// A small HTTP, TCP and UDP server for examples and tests
    #[command(hide = true)]
    Testserver(Testserver),
}

/// `culvert up`.
#[derive(Debug, Args)]
pub struct Up {
    /// Directory with Kubernetes objects in YAML
    pub directory: PathBuf,
    /// Number of nodes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=250))]
    pub nodes: u8,
    /// A setting (ipFamilies, accessLog, logLevel, workers, certificateTtl)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// What an image runs; without a tag the name stands for every tag
    #[arg(long, value_name = "NAME=COMMAND", value_parser = parse_image)]
    pub image: Vec<(String, Vec<String>)>,
    /// Let pods reach the world outside
    #[arg(long)]
    pub egress: bool,
    /// Run the objects without the mesh
    #[arg(long)]
    pub no_mesh: bool,
    /// How long to wait until all is ready
    #[arg(long, default_value = "120s", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub timeout: std::time::Duration,
    /// Directory of the other programs of the mesh; that of this one by default
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
}

/// `culvert down`.
#[derive(Debug, Args)]
pub struct Down {
    /// How long programs may take to end by themselves
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub grace: std::time::Duration,
}

/// Where objects are looked for.
#[derive(Debug, Args)]
pub struct Scope {
    /// Namespace
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table
    Table,
    /// A table with more columns
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// Names only
    Name,
}

/// Table or JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Simple {
    /// A table
    Table,
    /// JSON
    Json,
}

/// How to print what is no object.
#[derive(Debug, Args)]
pub struct Format {
    /// How to print
    #[arg(short, long, default_value = "table")]
    pub output: Simple,
}

/// `culvert get`.
#[derive(Debug, Args)]
pub struct Get {
    /// KIND, KIND/NAME, or KIND NAME
    #[arg(required = true, num_args = 1..)]
    pub what: Vec<String>,
    /// Where to look
    #[command(flatten)]
    pub scope: Scope,
    /// Labels that the objects have (key=value,key!=value,key)
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// How to print
    #[arg(short, long, default_value = "table")]
    pub output: Output,
}

/// `culvert exec`.
#[derive(Debug, Args)]
pub struct Exec {
    /// POD, POD.NAMESPACE, or deployment/NAME for one of its pods
    pub pod: String,
    /// Namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Container; the first one by default
    #[arg(short, long)]
    pub container: Option<String>,
    /// Keep the standard input (it always is)
    #[arg(short = 'i', long = "stdin")]
    pub stdin: bool,
    /// Use this terminal (it always is)
    #[arg(short = 't', long = "tty")]
    pub tty: bool,
    /// The command
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// `culvert logs`.
#[derive(Debug, Args)]
pub struct Logs {
    /// POD, POD.NAMESPACE, deployment/NAME, or a program such as node-proxy/node-1
    pub pod: String,
    /// Namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Container; the first one by default
    #[arg(short, long)]
    pub container: Option<String>,
    /// Go on printing
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last lines
    #[arg(long, value_name = "LINES")]
    pub tail: Option<usize>,
    /// The run before the present one
    #[arg(short, long)]
    pub previous: bool,
}

/// `culvert delete`.
#[derive(Debug, Args)]
pub struct Delete {
    /// KIND/NAME, or KIND NAME...
    #[arg(required = true, num_args = 1..)]
    pub what: Vec<String>,
    /// Namespace
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// Seconds that containers may take to end
    #[arg(long, value_name = "SECONDS")]
    pub grace_period: Option<u64>,
    /// Return at once
    #[arg(long)]
    pub no_wait: bool,
}

/// `culvert scale`.
#[derive(Debug, Args)]
pub struct Scale {
    /// KIND/NAME
    #[arg(required = true, num_args = 1..=2)]
    pub what: Vec<String>,
    /// Namespace
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// Wanted number
    #[arg(long)]
    pub replicas: u64,
}

/// A program of the mesh.
#[derive(Debug, Args)]
pub struct Target {
    /// node-proxy/NODE, discovery, ca, or cni/NODE
    pub target: String,
    /// How to print
    #[arg(short, long, default_value = "table")]
    pub output: Simple,
}

/// `culvert ca`.
#[derive(Debug, Subcommand)]
pub enum Ca {
    /// Rotate the root or the intermediate while traffic flows; shows how far it is
    Rotate {
        /// What to rotate; shows the progress when not given
        what: Option<Rotate>,
        /// Take the next step of a rotation now
        #[arg(long)]
        advance: bool,
    },
}

/// What to rotate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rotate {
    /// The root, step by step
    Root,
    /// The intermediate, at once
    Intermediate,
}

/// `culvert metrics`.
#[derive(Debug, Args)]
pub struct Metrics {
    /// node-proxy/NODE, discovery, ca, cni/NODE
    pub target: String,
    /// Only metrics whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
}

/// `culvert check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Only what has to hold before `up`
    #[arg(long)]
    pub pre: bool,
    /// How to print
    #[arg(short, long, default_value = "table")]
    pub output: Simple,
    /// Directory of the other programs of the mesh; that of this one by default
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
}

/// `culvert dns`.
#[derive(Debug, Args)]
pub struct Dns {
    /// Directory of objects
    #[arg(long)]
    pub objects: PathBuf,
    /// Where to say whether it is ready
    #[arg(long)]
    pub ready: SocketAddr,
    /// Name servers for everything else
    #[arg(long)]
    pub forward: Vec<SocketAddr>,
}

/// `culvert run`.
#[derive(Debug, Args)]
pub struct Run {
    /// File with what to become
    pub spec: PathBuf,
    /// Another command in the same place
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// `culvert testserver`.
#[derive(Debug, Args)]
pub struct Testserver {
    /// Port for HTTP
    #[arg(long, default_value_t = 8080)]
    pub http: u16,
    /// Port that sends every byte back, over TCP
    #[arg(long)]
    pub tcp: Option<u16>,
    /// Port that sends every datagram back
    #[arg(long)]
    pub udp: Option<u16>,
    /// Text of the answer's first line
    #[arg(long, default_value = "hello")]
    pub text: String,
}
