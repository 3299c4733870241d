//! Kernel settings under net/. /proc/sys/net shows the namespace of the thread
//! that opens a file there, so no mount is needed to change another namespace.

use std::fs;
use std::io;
use std::path::PathBuf;

/// A setting could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// Not a dotted name below `net.`.
    #[error("{0:?} is no name of a network setting")]
    BadName(String),
    /// The kernel has no such setting, or refuses the value.
    #[error("cannot {verb} {path}")]
    Io {
        /// `read` or `write`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Writes a setting such as `net.ipv4.tcp_fwmark_accept` in the namespace of the
/// calling thread. An interface name with dots in it is written with slashes:
/// `net/ipv4/conf/eth0.5/rp_filter`.
///
/// # Errors
/// When the name is outside `net`, the kernel lacks it, or the value is refused.
pub fn write_sysctl(name: &str, value: &str) -> Result<(), SysctlError> {
    let path = path_of(name)?;
    fs::write(&path, value).map_err(|source| SysctlError::Io {
        verb: "write",
        path,
        source,
    })
}

/// Reads a setting in the namespace of the calling thread, without its newline.
///
/// # Errors
/// When the name is outside `net`, or the kernel lacks it.
pub fn read_sysctl(name: &str) -> Result<String, SysctlError> {
    let path = path_of(name)?;
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(source) => Err(SysctlError::Io {
            verb: "read",
            path,
            source,
        }),
    }
}

fn path_of(name: &str) -> Result<PathBuf, SysctlError> {
    let parts: Vec<&str> = if name.contains('/') {
        name.split('/').collect()
    } else {
        name.split('.').collect()
    };
    let plain = parts
        .iter()
        .all(|part| !part.is_empty() && *part != "." && *part != "..");
    if parts.first() == Some(&"net") && parts.len() > 1 && plain {
        Ok(PathBuf::from("/proc/sys").join(parts.join("/")))
    } else {
        Err(SysctlError::BadName(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_below_net() {
        for bad in [
            "",
            "net",
            "kernel.panic",
            "net..x",
            "net/../kernel/panic",
            "/net/x",
            "net/",
        ] {
            assert!(
                matches!(path_of(bad), Err(SysctlError::BadName(_))),
                "{bad}"
            );
        }
        let expect = PathBuf::from("/proc/sys/net/ipv4/conf/eth0.5/rp_filter");
        assert_eq!(
            path_of("net/ipv4/conf/eth0.5/rp_filter").expect("good name"),
            expect
        );
        let expect = PathBuf::from("/proc/sys/net/ipv4/ip_forward");
        assert_eq!(path_of("net.ipv4.ip_forward").expect("good name"), expect);
    }
}
