//! The three ports of every program: admin (loopback), metrics, readiness.

mod profile;
mod routes;

use std::future::IntoFuture;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::Router;
use tokio::net::TcpListener;

use crate::drain::{Drain, DrainWatch};
use crate::logging::LogHandle;
use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// Where the three ports are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminConfig {
    /// Admin: loopback, since it can stop the process and shows its state.
    pub admin_address: SocketAddr,
    /// Metrics: all addresses, for a scraper.
    pub metrics_address: SocketAddr,
    /// Readiness: all addresses, for a kubelet.
    pub ready_address: SocketAddr,
}

/// What the ports show and control.
#[derive(Debug, Clone)]
pub struct Admin {
    /// `/metrics` and `/stats/prometheus`.
    pub metrics: Metrics,
    /// `/healthz/ready`.
    pub readiness: Readiness,
    /// `/logging`.
    pub log: LogHandle,
    /// `/quitquitquit`, and the end of the ports themselves.
    pub drain: Drain,
    /// `/config`: the effective static configuration.
    pub config: serde_json::Value,
    /// More routes of the admin port, such as `/config_dump`.
    pub extra: Router,
}

/// A port could not be opened or served.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The listener could not be made.
    #[error("could not listen on {address} for {port}")]
    Listen {
        /// Which of the three.
        port: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Serving ended with an error.
    #[error("could not serve {port}")]
    Serve {
        /// Which of the three.
        port: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The addresses that were bound, for port 0 in tests.
#[derive(Debug, Clone, Copy)]
pub struct BoundAddresses {
    /// The admin port.
    pub admin: SocketAddr,
    /// The metrics port.
    pub metrics: SocketAddr,
    /// The readiness port.
    pub ready: SocketAddr,
}

/// The three open listeners, not served yet.
#[derive(Debug)]
pub struct AdminListeners {
    admin: TcpListener,
    metrics: TcpListener,
    ready: TcpListener,
    addresses: BoundAddresses,
}

impl AdminListeners {
    /// Opens the three ports. An unspecified IPv6 address falls back to IPv4
    /// where the kernel has IPv6 off.
    ///
    /// # Errors
    /// When a port cannot be opened.
    pub async fn bind(config: &AdminConfig) -> Result<Self, AdminError> {
        let (admin, admin_at) = listen("admin", config.admin_address).await?;
        let (metrics, metrics_at) = listen("metrics", config.metrics_address).await?;
        let (ready, ready_at) = listen("readiness", config.ready_address).await?;
        let addresses = BoundAddresses {
            admin: admin_at,
            metrics: metrics_at,
            ready: ready_at,
        };
        Ok(Self {
            admin,
            metrics,
            ready,
            addresses,
        })
    }

    /// Where the ports are.
    #[must_use]
    pub fn addresses(&self) -> BoundAddresses {
        self.addresses
    }

    /// Serves the three ports until the process stops: they stay open while it
    /// drains, so that the drain can be watched.
    ///
    /// # Errors
    /// When a listener fails.
    pub async fn serve(self, admin: Admin) -> Result<(), AdminError> {
        let stop = admin.drain.watch();
        let admin_routes = routes::admin(&admin).merge(admin.extra.clone());
        let metrics_routes = routes::metrics(admin.metrics);
        let ready_routes = routes::ready(admin.readiness, stop.clone());
        tokio::try_join!(
            serve("admin", self.admin, admin_routes, stop.clone()),
            serve("metrics", self.metrics, metrics_routes, stop.clone()),
            serve("readiness", self.ready, ready_routes, stop),
        )
        .map(|_| ())
    }
}

/// Opens and serves the three ports until the process stops.
///
/// # Errors
/// When a port cannot be opened or its listener fails.
pub async fn serve_admin(config: AdminConfig, admin: Admin) -> Result<(), AdminError> {
    AdminListeners::bind(&config).await?.serve(admin).await
}

async fn listen(
    port: &'static str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), AdminError> {
    let failed = |source| AdminError::Listen {
        port,
        address,
        source,
    };
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(first) if address.is_ipv6() && address.ip().is_unspecified() => {
            let fallback = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
            // The first error is the one about the address that was asked for.
            TcpListener::bind(fallback)
                .await
                .map_err(|_| failed(first))?
        }
        Err(error) => return Err(failed(error)),
    };
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

async fn serve(
    port: &'static str,
    listener: TcpListener,
    routes: Router,
    stop: DrainWatch,
) -> Result<(), AdminError> {
    let served = axum::serve(listener, routes).into_future();
    tokio::select! {
        ended = served => ended.map_err(|source| AdminError::Serve { port, source }),
        () = stop.stopped() => Ok(()),
    }
}

#[cfg(test)]
mod tests;
