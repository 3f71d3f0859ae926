//! The server of a model: whether it answers, and the temporary AIInference as it is created. Pure.

use std::time::Duration;

use api::{
    aiinference::{
        AIInference,
        evaluation::{CPU, Order, ResolvedSide, Server},
        source::ModelSource,
    },
    conditions, reasons,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Map, Value, json};
use workload::{Cause, faults::container::quote, templates::rendered::Rendered, time::remaining};

use super::{Scene, metadata::metadata};
use crate::{
    inference::InferenceView,
    names::{self, Side},
    observe::Sighting,
    validate::Model,
};

/// Whether questions can be asked.
pub(super) enum Readiness {
    Ready(Serving),
    /// The temporary server, or the end of the other one, is awaited.
    Waits {
        cause: Cause,
        wait: Option<Duration>,
    },
    /// A server of the user does not answer, or another object has the name of the temporary one. Nothing is created for this side
    /// meanwhile.
    Unavailable(Cause),
    /// The temporary server will not come up.
    Failed(Cause),
}

/// A server that answers.
pub(super) struct Serving {
    /// For messages.
    pub(super) name: String,
    /// With `/v1`.
    pub(super) url: String,
    /// `None`: the only model there.
    pub(super) model: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) digest: Option<String>,
    pub(super) revision: Option<String>,
}

/// A server waits for these, however long they take.
const AWAITED: [&str; 6] = [
    reasons::INSUFFICIENT_GPU,
    reasons::UNSCHEDULABLE,
    reasons::QUOTA_PENDING,
    reasons::SCHEDULING_GATED,
    reasons::NO_SCHEDULER,
    reasons::NO_SUCH_PRODUCT,
];
/// Where LoRA adapters are mounted.
const ADAPTERS: &str = "/adapters";
/// Name of their volume.
const ADAPTERS_VOLUME: &str = "adapters";
/// The largest rank that adapters may have, unless spec.server.args has another one. ms-swift trains with 8 by default.
const MOST_RANK: &str = "64";

pub(super) fn readiness(scene: &Scene<'_>, side: Side) -> Readiness {
    match scene.valid.model(side) {
        Model::Endpoint { url, model } => Readiness::Ready(Serving {
            name: url.clone(),
            url: url.clone(),
            model: model.clone(),
            uid: None,
            digest: None,
            revision: None,
        }),
        Model::Served { inference } => running(scene, side, inference),
        Model::Source(_) | Model::Output { .. } => temporary(scene, side),
    }
}

/// One of the user, which is never changed.
fn running(scene: &Scene<'_>, side: Side, name: &str) -> Readiness {
    let (namespace, field) = (&scene.valid.namespace, side.field());
    let Some(server) = scene.observed.running(side) else {
        let message = format!("{field}: AIInference {namespace}/{name} does not exist; create it");
        return Readiness::Unavailable(Cause { reason: reasons::DEPENDENCY_NOT_FOUND, message });
    };
    match serving(server, None) {
        Some(serving) => Readiness::Ready(serving),
        None => {
            let message = format!("waits for AIInference {namespace}/{name}{}", words(server));
            Readiness::Unavailable(Cause { reason: reasons::WAITING, message })
        }
    }
}

fn temporary(scene: &Scene<'_>, side: Side) -> Readiness {
    let waits =
        |message: String, wait| Readiness::Waits { cause: Cause { reason: reasons::WAITING, message }, wait };
    if !scene.observed.serves_inferences {
        let message = "the cluster does not have the kind AIInference; install deploy/crds and the inference-controller";
        return waits(message.to_owned(), None);
    }
    if let Some(other) = before(scene, side) {
        return waits(
            format!("waits until AIInference {} has gone, whose GPUs are needed", other.name()),
            None,
        );
    }
    let name = names::server(&scene.valid.name, side);
    match scene.observed.server(side) {
        Sighting::Absent => match wanted(scene, side) {
            Err(cause) => Readiness::Failed(cause),
            Ok(_) => waits(format!("AIInference {name} starts"), None),
        },
        Sighting::Foreign { owner } => {
            let namespace = &scene.valid.namespace;
            let message = format!(
                "AIInference {namespace}/{name} exists and belongs to {owner}; rename it, or create the evaluation with another \
                 name"
            );
            Readiness::Unavailable(Cause { reason: reasons::OWNERSHIP_CONFLICT, message })
        }
        Sighting::Own(server) => own(scene, side, server),
    }
}

/// The other temporary server, if it has to go first.
fn before<'s>(scene: &Scene<'s>, side: Side) -> Option<&'s InferenceView> {
    let other = scene.observed.server(side.other()).own();
    match scene.valid.evaluation.spec.order {
        Order::Sequential => other,
        Order::Parallel => None,
    }
}

fn own(scene: &Scene<'_>, side: Side, server: &InferenceView) -> Readiness {
    let adapters = scene.sides.of(side).ok().and_then(|resolved| resolved.adapters.as_ref());
    if let Some(serving) = serving(server, adapters.map(|_| ADAPTERS_VOLUME)) {
        return Readiness::Ready(serving);
    }
    let fault = server.condition(conditions::STALLED).filter(|stalled| stalled.status == "True");
    let fault = fault.filter(|stalled| !AWAITED.contains(&stalled.reason.as_str()));
    let unpaused = scene.observed.unpaused_since(scene.now);
    let since = |stalled: &Condition| stalled.last_transition_time.0.max(unpaused);
    let left = fault.map(|stalled| remaining(scene.settings.server_fault, since(stalled), scene.now));
    let message = format!("AIInference {}{}", server.name(), words(server));
    match left {
        Some(None) => Readiness::Failed(Cause { reason: reasons::SERVER_FAILED, message }),
        Some(wait) => Readiness::Waits { cause: Cause { reason: reasons::SERVER_FAILED, message }, wait },
        None => Readiness::Waits { cause: Cause { reason: reasons::WAITING, message }, wait: None },
    }
}

/// `model`: its name, if it is not that of the server.
fn serving(server: &InferenceView, model: Option<&str>) -> Option<Serving> {
    let url = server.status.url.as_ref().filter(|_| server.is_ready())?;
    let known = server.status.model.as_ref();
    let of_server = server.served_model_name.as_deref().unwrap_or(server.name());
    Some(Serving {
        name: format!("AIInference {}", server.name()),
        url: format!("{}/v1", url.trim_end_matches('/')),
        model: Some(model.unwrap_or(of_server).to_owned()),
        uid: server.metadata.uid.clone(),
        digest: known.map(|model| model.digest.clone()).filter(|digest| !digest.is_empty()),
        revision: known.and_then(|model| model.revision.clone()),
    })
}

/// By what a server is known: uid, version of the spec and files of the model. Of a temporary one the files alone: it
/// may have been made again. `None`: there is nothing to compare.
pub(super) fn mark(scene: &Scene<'_>, side: Side) -> Option<String> {
    let of = |server: &InferenceView| {
        let digest = server.status.model.as_ref().map(|model| model.digest.clone()).unwrap_or_default();
        let uid = server.metadata.uid.clone().unwrap_or_default();
        (uid, server.version.clone(), digest)
    };
    match scene.valid.model(side) {
        Model::Endpoint { .. } => None,
        Model::Served { .. } => {
            let gone = || ("none".to_owned(), String::new(), String::new());
            let (uid, version, digest) = scene.observed.running(side).map_or_else(gone, of);
            Some(format!("{uid}/{version}/{digest}"))
        }
        Model::Source(_) | Model::Output { .. } => {
            let (_, _, digest) = of(scene.observed.server(side).own()?);
            Some(format!("//{digest}"))
        }
    }
}

/// What the server says of itself.
fn words(server: &InferenceView) -> String {
    if server.is_being_deleted() {
        return " is being deleted".to_owned();
    }
    let said = server.condition(conditions::STALLED).or_else(|| server.condition(conditions::READY));
    match said {
        Some(said) => format!(" is not ready: {}: {}", said.reason, quote(&said.message)),
        None => " starts".to_owned(),
    }
}

/// The temporary server of a side as it should be; `None`: it needs none, or not yet.
pub(super) fn wanted(scene: &Scene<'_>, side: Side) -> Result<Option<Rendered<AIInference>>, Cause> {
    let valid = scene.valid;
    let is_temporary = matches!(valid.model(side), Model::Source(_) | Model::Output { .. });
    let is_free = match scene.observed.server(side) {
        Sighting::Absent => true,
        // Its end starts the next reconcile.
        Sighting::Own(server) => !server.is_being_deleted(),
        Sighting::Foreign { .. } => false,
    };
    let is_next = before(scene, side).is_none();
    if !(is_temporary && is_free && is_next && scene.observed.serves_inferences) {
        return Ok(None);
    }
    let Ok(resolved) = scene.sides.of(side) else { return Ok(None) };
    let metadata = metadata(valid, names::server(&valid.name, side));
    let spec = spec(scene, resolved).map_err(|why| Cause {
        reason: reasons::UNSUPPORTED_ARTIFACT,
        message: format!("{}: {why}", side.field()),
    })?;
    Ok(Some(Rendered::new(metadata, spec)))
}

fn spec(scene: &Scene<'_>, resolved: &ResolvedSide) -> Result<Value, String> {
    let spec = &scene.valid.evaluation.spec;
    let server = &spec.server;
    let Server {
        gpus: _,
        accelerator: _,
        engine,
        image,
        args,
        env,
        resources,
        warmup_timeout_seconds,
        model_store,
        model_loader,
        model_volume,
        scheduling,
    } = server;
    let mut args = args.clone();
    let mut fields = Map::from_iter([
        ("modelSource".to_owned(), json!(resolved.model_source)),
        ("engine".to_owned(), json!(engine)),
        ("gpu".to_owned(), gpu(server)),
        ("replicas".to_owned(), json!(1)),
        ("securityContext".to_owned(), json!(spec.pods.security_context)),
    ]);
    if let Some(adapters) = &resolved.adapters {
        fields.insert("volumes".to_owned(), json!([volume(adapters)?]));
        args.extend(lora(&args, engine.as_str())?);
    }
    let optional = [
        ("image", json!(image)),
        ("args", json!(args)),
        ("env", json!(env)),
        ("resources", json!(resources)),
        ("warmupTimeoutSeconds", json!(warmup_timeout_seconds)),
        ("modelStore", json!(model_store)),
        ("modelLoader", json!(model_loader)),
        ("modelVolume", json!(model_volume)),
        ("scheduling", json!(scheduling)),
        ("imagePullSecrets", json!(spec.pods.image_pull_secrets)),
        ("serviceAccountName", json!(spec.pods.service_account_name)),
        ("helperResources", json!(spec.pods.helper_resources)),
    ];
    // An admission policy may demand labels of each pod. Annotations are those of runs.
    if !spec.pods.pod_labels.is_empty() {
        fields.insert("podLabels".to_owned(), json!(spec.pods.pod_labels));
    }
    let is_set = |value: &Value| !value.is_null() && value.as_array().is_none_or(|items| !items.is_empty());
    let set = optional.into_iter().filter(|(_, value)| is_set(value));
    fields.extend(set.map(|(field, value)| (field.to_owned(), value)));
    Ok(Value::Object(fields))
}

fn gpu(server: &Server) -> Value {
    match server.accelerator.as_deref() {
        Some(CPU) => json!({"count": 0}),
        Some(product) => json!({"count": server.gpus.unwrap_or(1), "productLabel": product}),
        None => json!({"count": server.gpus.unwrap_or(1)}),
    }
}

/// A volume of the engine with the adapters.
fn volume(adapters: &str) -> Result<Value, String> {
    let Ok(ModelSource::Claim { name, path }) = adapters.parse::<ModelSource>() else {
        return Err(format!("the LoRA adapters {adapters} are in no claim"));
    };
    let mut volume = json!({"name": ADAPTERS_VOLUME, "mountPath": ADAPTERS, "claimName": name});
    if !path.is_empty() {
        volume["subPath"] = path.into();
    }
    Ok(volume)
}

/// Arguments of vLLM that serve adapters under a name of their own.
fn lora(given: &[String], engine: &str) -> Result<Vec<String>, String> {
    if engine != "vllm" {
        return Err(format!(
            "LoRA adapters cannot be served by {engine}; set spec.server.engine vllm, or evaluate a merged model"
        ));
    }
    let is_set = |flag: &str| given.iter().any(|arg| arg.split('=').next() == Some(flag));
    let mut args = vec![
        "--enable-lora".to_owned(),
        "--lora-modules".to_owned(),
        format!("{ADAPTERS_VOLUME}={ADAPTERS}"),
    ];
    if !is_set("--max-lora-rank") {
        args.extend(["--max-lora-rank".to_owned(), MOST_RANK.to_owned()]);
    }
    Ok(args)
}
