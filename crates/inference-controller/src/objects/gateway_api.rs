//! Kinds of the Gateway API and of its extensions, as far as this controller writes and reads them. Clusters may do without
//! each of them. It decides nothing.
//!
//! Only fields of the standard channel are written, and all defaults of the API server are written out: what is stored is
//! what was applied.

pub(crate) mod grpc_route;
pub(crate) mod http_route;
pub(crate) mod inference_pool;

/// Of the routes.
pub(crate) const GROUP: &str = "gateway.networking.k8s.io";
