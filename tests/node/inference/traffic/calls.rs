//! Calls of Triton's gRPC API through the GRPCRoute: by a key of their metadata to the candidate, and by the share.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
};

use api::aiinference::AIInference;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tests::{
    Scene, ask_until,
    gateway::contour::GATEWAY,
    inference::{change, create},
    within,
};
use tonic::{
    Request, Status,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::until_share_of;
use crate::{
    claims::folder,
    store::{Model, on_real_nodes, with},
};

const HOST: &str = "http://calls.example.com";
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const MODEL: &str = "classifier";
/// Calls in each way.
const EACH: usize = 10;

/// The fields of Triton's messages that are used here.
#[derive(Clone, PartialEq, prost::Message)]
struct InferRequest {
    #[prost(string, tag = "1")]
    model_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct InferResponse {
    #[prost(map = "string, message", tag = "4")]
    parameters: HashMap<String, Parameter>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Parameter {
    #[prost(string, tag = "3")]
    string_param: String,
}

/// Two versions of a Triton, of which the second one gets calls with a key alone.
pub(super) async fn create_triton(scene: &Scene<'_>) {
    let repository =
        Model::new([("classifier/config.pbtxt", Vec::new()), ("classifier/1/model.onnx", b"weights".into())]);
    repository.write_to(&folder(scene).join("triton"));
    let spec = json!({
        "engine": "triton",
        "drainSeconds": 5,
        "env": revision(1),
        "gateway": {
            "name": GATEWAY,
            "hostnames": ["requests.example.com"],
            "grpc": { "hostnames": ["calls.example.com"] },
        },
        "canary": { "env": revision(2), "match": [{ "header": "x-version", "value": "new" }] },
    });
    create(scene, "calls", with(on_real_nodes("pvc://models/triton"), spec)).await;
}

fn revision(number: u64) -> Value {
    json!([{ "name": "ENGINE_REVISION", "value": number.to_string() }])
}

pub(super) async fn calls_follow_their_metadata_and_the_share(scene: &Scene<'_>, envoy: SocketAddr) {
    let endpoint = Endpoint::from_shared(format!("http://{envoy}")).expect("an address");
    let channel = endpoint.origin(HOST.parse().expect("a URI")).connect_lazy();
    for (version, revision) in [(None, "1"), (Some("new"), "2")] {
        ask_until(&format!("revision {revision} answers"), within(), async || {
            match called(&channel, version).await {
                Ok(answered) if answered == revision => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
    for _ in 0..EACH {
        for (version, revision) in [(Some("new"), "2"), (Some("old"), "1"), (None, "1")] {
            assert_eq!(called(&channel, version).await, Ok(revision.to_owned()), "{version:?}");
        }
    }
    change(scene, "calls", json!({ "canary": { "weightPercent": 50, "match": [] } })).await;
    until_share_of(scene, "calls", 50).await;
    let mut answered = BTreeSet::new();
    ask_until("both versions answer", within(), async || {
        answered.insert(called(&channel, None).await?);
        if answered.len() == 2 { Ok(()) } else { Err(format!("{answered:?}")) }
    })
    .await;
    scene.api::<AIInference>().delete("calls", &DeleteParams::default()).await.expect("its GPUs get free");
}

/// The revision that answers a call with this version in its metadata.
async fn called(channel: &Channel, version: Option<&'static str>) -> Result<String, String> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.map_err(|error| error.to_string())?;
    let mut request = Request::new(InferRequest { model_name: MODEL.to_owned() });
    if let Some(version) = version {
        request.metadata_mut().insert("x-version", version.parse().expect("a value"));
    }
    let codec: ProstCodec<InferRequest, InferResponse> = ProstCodec::default();
    let answer = client
        .unary(request, PathAndQuery::from_static(INFER), codec)
        .await
        .map_err(|status: Status| status.to_string())?;
    let revision = answer.into_inner().parameters.remove("revision");
    revision.map(|known| known.string_param).ok_or("no revision".to_owned())
}
