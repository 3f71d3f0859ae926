//! What kinds share that use an object store: how it is addressed, where results are uploaded, and what is there then.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::rules;

/// Addressing style of requests to a store.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addressing {
    #[default]
    Auto,
    Path,
    VirtualHosted,
}

impl Addressing {
    pub const ALL: [Addressing; 3] = [Addressing::Auto, Addressing::Path, Addressing::VirtualHosted];

    /// The value of the loader's option.
    pub fn as_option(self) -> &'static str {
        match self {
            Addressing::Auto => "auto",
            Addressing::Path => "path",
            Addressing::VirtualHosted => "virtual-hosted",
        }
    }

    pub(crate) fn is_auto(&self) -> bool {
        *self == Addressing::Auto
    }
}

/// Destination of the upload.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Upload {
    /// Bucket and prefix, `s3://bucket[/prefix]`.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = rules::s3_uri())]
    pub uri: String,

    /// URL of the store, http or https. Default: AWS S3 in the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = rules::http_url())]
    pub endpoint: Option<String>,

    /// Region of the bucket. Default: us-east-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rules::region())]
    pub region: Option<String>,

    /// Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and optionally AWS_SESSION_TOKEN. Default: none; the identity
    /// of serviceAccountName is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub secret_name: Option<String>,

    /// Addressing style of requests. Path: endpoint/bucket. VirtualHosted: bucket.endpoint, which Alibaba Cloud OSS and
    /// Tencent Cloud COS require. Auto: VirtualHosted for AWS, OSS and COS, Path for any other endpoint. Default: Auto.
    // The default is not serialized, so writing an object back adds no field.
    #[serde(default, skip_serializing_if = "Addressing::is_auto")]
    #[schemars(extend("default" = "Auto"))]
    pub addressing: Addressing,

    /// Secret with certificates (key `ca.crt`, PEM) of authorities that are trusted beside the public ones. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub ca_secret_name: Option<String>,
}

/// An uploaded file.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// URI of the file.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub uri: String,

    /// Size in bytes; 0 if the uploader has not reported it.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub bytes: i64,

    /// SHA-256 in hexadecimal.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub sha256: String,
}
