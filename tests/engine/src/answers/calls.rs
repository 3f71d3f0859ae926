//! Triton's gRPC API, as far as tests call it: `ModelInfer` alone. Other calls are unimplemented.
//!
//! An answer has two parameters that the real one has not: the pod and the revision, by which tests tell who has answered.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
    routing::post,
};
use serde_json::Value;
use tonic::{Status, server::Grpc};
use tonic_prost::ProstCodec;

use super::{Serving, answer};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Without tensors, which no test sends.
#[derive(Clone, PartialEq, prost::Message)]
struct InferRequest {
    #[prost(string, tag = "1")]
    model_name: String,
    #[prost(string, tag = "3")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct InferResponse {
    #[prost(string, tag = "1")]
    model_name: String,
    #[prost(string, tag = "2")]
    model_version: String,
    #[prost(string, tag = "3")]
    id: String,
    #[prost(map = "string, message", tag = "4")]
    parameters: HashMap<String, Parameter>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Parameter {
    #[prost(string, tag = "3")]
    string_param: String,
}

pub(crate) fn router(serving: &Arc<Serving>) -> Router {
    let unimplemented = async || Status::unimplemented("no test calls it").into_http::<Body>();
    Router::new().route(INFER, post(infer)).fallback(unimplemented).with_state(Arc::clone(serving))
}

async fn infer(State(serving): State<Arc<Serving>>, request: Request) -> Response {
    let service = tower::service_fn(move |request: tonic::Request<InferRequest>| {
        let serving = Arc::clone(&serving);
        async move { inferred(&serving, request.into_inner()).await.map(tonic::Response::new) }
    });
    let codec: ProstCodec<InferResponse, InferRequest> = ProstCodec::default();
    Grpc::new(codec).unary(service, request).await.map(Body::new)
}

async fn inferred(serving: &Serving, request: InferRequest) -> Result<InferResponse, Status> {
    let InferRequest { model_name, id } = request;
    if serving.counters(&model_name).is_none() {
        return Err(Status::not_found(format!("Request for unknown model: '{model_name}' is not found")));
    }
    let status = answer(serving, &model_name, Value::Null).await.status();
    if !status.is_success() {
        return Err(Status::internal(format!("the engine answers {status}")));
    }
    let own = [("pod", &serving.behaviour.pod), ("revision", &serving.behaviour.revision)];
    let parameter =
        |(name, value): (&str, &String)| (name.to_owned(), Parameter { string_param: value.clone() });
    let parameters = own.map(parameter).into();
    Ok(InferResponse { model_name, model_version: "1".to_owned(), id, parameters })
}
