//! The machine's resolv.conf.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The C library's limits.
const SERVERS_MAX: usize = 3;
const ATTEMPTS_MAX: u32 = 5;
/// The clients behind us wait 5 s themselves, so that we must have asked the second
/// server before.
const TIMEOUT_MAX: Duration = Duration::from_secs(2);
/// How often the file is looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const DNS_PORT: u16 = 53;

/// Whom to ask, and how patiently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvConf {
    /// In order.
    pub servers: Vec<SocketAddr>,
    /// Search domains, lower case, without the last dot.
    pub search: Vec<String>,
    /// For one try.
    pub timeout: Duration,
    /// How often to go through the servers.
    pub attempts: u32,
}

impl ResolvConf {
    /// Reads the text of a resolv.conf; what is not understood is passed over, as the
    /// C library does.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut conf = Self {
            servers: Vec::new(),
            search: Vec::new(),
            timeout: TIMEOUT_MAX,
            attempts: 2,
        };
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => conf.servers.extend(words.next().and_then(server)),
                // The last line wins.
                Some("search" | "domain") => {
                    conf.search = words
                        .map(|word| word.trim_matches('.').to_ascii_lowercase())
                        .filter(|word| !word.is_empty())
                        .collect();
                }
                Some("options") => words.for_each(|word| conf.option(word)),
                _ => {}
            }
        }
        conf.servers.truncate(SERVERS_MAX);
        conf
    }

    fn option(&mut self, word: &str) {
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        match word.split_once(':') {
            Some(("timeout", text)) => {
                if let Some(seconds) = number(text) {
                    self.timeout = Duration::from_secs(seconds.into()).min(TIMEOUT_MAX);
                }
            }
            Some(("attempts", text)) => {
                if let Some(attempts) = number(text) {
                    self.attempts = attempts.min(ATTEMPTS_MAX);
                }
            }
            _ => {}
        }
    }
}

fn server(text: &str) -> Option<SocketAddr> {
    // A zone index names an interface of the machine, which the pod does not have.
    let ip: IpAddr = text.parse().ok()?;
    Some(SocketAddr::new(ip, DNS_PORT))
}

/// The file, read again when it changes.
#[derive(Debug)]
pub struct ResolvFile {
    path: PathBuf,
    current: Arc<ResolvConf>,
    modified: Option<SystemTime>,
    looked: Option<Instant>,
}

impl ResolvFile {
    /// The file at a path; it may appear later.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let current = Arc::new(ResolvConf::parse(""));
        Self {
            path,
            current,
            modified: None,
            looked: None,
        }
    }

    /// What it says; a file that cannot be read leaves what it said before.
    pub fn current(&mut self) -> Arc<ResolvConf> {
        if self
            .looked
            .is_none_or(|looked| looked.elapsed() >= LOOK_AGAIN)
        {
            self.looked = Some(Instant::now());
            self.look();
        }
        Arc::clone(&self.current)
    }

    fn look(&mut self) {
        let modified = std::fs::metadata(&self.path)
            .and_then(|meta| meta.modified())
            .ok();
        if modified.is_some() && modified == self.modified {
            return;
        }
        match std::fs::read_to_string(&self.path) {
            Ok(text) => {
                self.current = Arc::new(ResolvConf::parse(&text));
                self.modified = modified;
            }
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "cannot read DNS servers");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_c_library_reads() {
        let conf = ResolvConf::parse(
            "# made by hand\nnameserver 10.96.0.10 \nnameserver fd00::a\nnameserver fe80::1%eth0\n\
             nameserver not-an-address\nsearch a.example\nsearch Corp.Example. b.example ; no\n\
             options ndots:5 timeout:1 attempts:9 rotate\nnameserver 1.1.1.1\nnameserver 8.8.8.8\n",
        );
        let servers = ["10.96.0.10:53", "[fd00::a]:53", "1.1.1.1:53"];
        assert_eq!(
            conf.servers,
            servers.map(|text| text.parse().expect("address"))
        );
        assert_eq!(conf.search, ["corp.example", "b.example"]);
        assert_eq!((conf.timeout, conf.attempts), (Duration::from_secs(1), 5));
        let empty = ResolvConf::parse("options timeout:0 attempts:x timeout:99");
        assert_eq!((empty.timeout, empty.attempts), (TIMEOUT_MAX, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_seen_and_a_lost_one_keeps_the_last() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("resolv.conf");
        let mut file = ResolvFile::new(path.clone());
        assert!(file.current().servers.is_empty());
        std::fs::write(&path, "nameserver 10.0.0.1").expect("write");
        assert!(file.current().servers.is_empty());
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(file.current().servers.len(), 1);
        std::fs::remove_file(&path).expect("remove");
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(file.current().servers.len(), 1);
    }
}
