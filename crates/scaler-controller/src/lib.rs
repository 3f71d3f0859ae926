//! Controller of AIScaler: reads measured values and sets the replicas of a target through its scale subresource.
//!
//! ```text
//!  Prometheus, pods, agents,
//!  Secrets, other scales ─ collect ▶ samples ─┐ wakes
//!  AIScaler, targets, pods ──────── caches ───┴▶ observe → validate → plan → apply ─▶ scale of the target
//!  HPAs, ScaledObjects                            caches    pure      pure    I/O  ─▶ status, events
//! ```
//!
//! `collect` reads the sources of each object at its own times. It reads metrics agents also when an agent sends.
//! `observe` reads only caches and samples. The crate `scaling` has the arithmetic.
//!
//! **Invariant:** a missing value is a fault and never zero, except the latency of an engine that reports no request. A
//! query reads no series of another namespace. Every answer is bounded in bytes and in time, and no redirect is
//! followed. A Secret is read by its name and never listed, and no message contains a token. Writes of another manager
//! are answered at most three times within five minutes.
//!
//! Files, beside those of every controller (`observe.rs`, `validate.rs`, `plan.rs`, `apply.rs`, `metrics.rs`):
//!
//! - `target.rs`: what can be scaled, and which object where one owns the other.
//! - `other_kinds.rs`: targets of kinds that are not watched.
//! - `contender.rs`: other autoscalers of a target.
//! - `contest.rs`: others that write the replicas of a target.
//! - `first_look.rs`: announces a first value whose unit must be wrong.
//! - `selector.rs`, `pod.rs`: the pods that the selector of a target matches.
//! - `owners.rs`: which of these pods are the target's.
//! - `metric.rs`: words and numbers of a metric for users.
//! - `configuration.rs`: the options.
//! - `validities.rs`: which AIScalers are valid.
//! - `history.rs`: what the status keeps for a restart.
//!
//! The way of a sample:
//!
//! - `collect.rs`: reads the sources of one object.
//! - `credentials.rs`: tokens and authorities from Secrets.
//! - `answer.rs`: judges what was read.
//! - `samples.rs`: keeps what was read last, and what became of the last writes.
//! - `trend.rs`: finds counters that were meant as gauges.
//! - `rates.rs`: shares scrapes between objects that read the same metric of the same target.
//! - `agents.rs`: where the metrics agents are, and which AIScalers a snapshot concerns.
//! - `sources.rs`: what a source gives: a sample, or the fault that explains its absence.
//!
//! Files of `sources`:
//!
//! - `prometheus.rs`: sends one query to a Prometheus-compatible server.
//! - `prometheus/url.rs`: which servers users may name.
//! - `prometheus/answer.rs`: judges the answer of a server.
//! - `prometheus/secret.rs`: a token and authorities of a Secret.
//! - `promql.rs`: restricts a query to its namespace, or refuses it; its parser is in `promql`.
//! - `pods.rs`: scrapes one pod.
//! - `pods/bodies.rs`: how many answers are read at once.
//! - `pods/scrapes.rs`: turns successive scrapes into rates and percentiles.
//! - `pods/kept.rs`: bounds the bytes of scrapes, in all and for each namespace.
//! - `histogram.rs`: percentiles of a histogram.
//! - `engines.rs`: the table of what engines call their load.
//! - `agents.rs`: judges what metrics agents report about the GPUs of pods.
//! - `body.rs`: reads a body up to a limit.

#![forbid(unsafe_code)]

use std::sync::Arc;

use api::{aidispatcher::AIDispatcher, aiinference::AIInference, aiscaler::AIScaler, labels};
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use runtime::{
    apply::{ApplyError, Writer},
    args::RuntimeArgs,
    cache::{Cache, Key},
    clock::Clock,
    controller::Next,
    events::Recorder,
    polling::Trigger,
    process::{Identity, Process, Started},
    relations::Referrers,
    scale::Scales,
};

use crate::{
    agents::Agents,
    apply::{Applied, apply},
    configuration::{Configuration, ScalerArgs},
    contender::{HpaView, ScaledObjectView},
    credentials::Credentials,
    metrics::Counts,
    observe::observe,
    other_kinds::Resources,
    plan::{plan, refused, rejected},
    pod::PodView,
    rates::Rates,
    samples::{OUTDATED_FOR, Samples},
    selector::PodsByLabel,
    sources::pods::Bodies,
    target::{Reference, Scalable},
    validate::validate,
    validities::Validities,
};

mod agents;
mod answer;
mod apply;
mod collect;
pub mod configuration;
mod contender;
mod contest;
mod credentials;
mod first_look;
mod history;
mod metric;
mod metrics;
mod observe;
mod other_kinds;
mod owners;
mod plan;
mod pod;
mod rates;
mod samples;
mod selector;
pub mod sources;
mod target;
#[cfg(test)]
mod tests;
mod trend;
mod validate;
mod validities;

/// Field manager and name of the Lease.
pub const NAME: &str = "scaler-controller";

pub const IDENTITY: Identity =
    Identity { name: NAME, version: env!("CARGO_PKG_VERSION"), hash_annotation: labels::APPLIED };

/// The command line.
#[derive(Parser, Debug)]
#[command(name = NAME, version, about)]
pub struct Args {
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub scaler: ScalerArgs,
}

/// Shared by all reconciles.
pub(crate) struct Context {
    pub(crate) scalers: Cache<AIScaler>,
    pub(crate) deployments: Cache<Scalable<Deployment>>,
    pub(crate) stateful_sets: Cache<Scalable<StatefulSet>>,
    pub(crate) inferences: Cache<Scalable<AIInference>>,
    pub(crate) dispatchers: Cache<Scalable<AIDispatcher>>,
    pub(crate) hpas: Cache<HpaView>,
    pub(crate) scaled_objects: Cache<ScaledObjectView>,
    pub(crate) pods: Cache<PodView>,
    pub(crate) pods_by_label: PodsByLabel,
    /// By `Reference::identity` of their targets.
    pub(crate) scaler_targets: Referrers,
    pub(crate) hpa_targets: Referrers,
    pub(crate) scaled_object_targets: Referrers,
    pub(crate) validities: Validities,
    pub(crate) samples: Samples,
    pub(crate) rates: Rates,
    pub(crate) bodies: Bodies,
    pub(crate) credentials: Credentials,
    /// Of targets whose kinds are not watched.
    pub(crate) resources: Resources,
    pub(crate) agents: Agents,
    pub(crate) counts: Counts,
    pub(crate) configuration: Configuration,
    pub(crate) clock: Clock,
    pub(crate) writer: Writer,
    pub(crate) scales: Scales,
    pub(crate) recorder: Recorder,
}

/// Declares the watches and starts the controller.
pub fn start(process: &mut Process, args: ScalerArgs) -> Started {
    let scalers = process.watch::<AIScaler>("AIScaler");
    let pods = process.watch::<PodView>("Pod");
    let hpas = process.watch::<HpaView>("HorizontalPodAutoscaler");
    let scaled_objects = process.watch_if_served::<ScaledObjectView>("ScaledObject");
    let ctx = Arc::new(Context {
        deployments: process.watch("Deployment"),
        stateful_sets: process.watch("StatefulSet"),
        inferences: process.watch_if_served("AIInference"),
        dispatchers: process.watch_if_served("AIDispatcher"),
        pods_by_label: PodsByLabel::of(&pods),
        pods,
        scaler_targets: Referrers::of(&scalers, |scaler| {
            Some(identity(scaler.metadata.namespace.as_deref(), &Reference::of(&scaler.spec)))
        }),
        hpa_targets: Referrers::of(&hpas, |hpa| {
            hpa.target.as_ref().map(|target| identity(hpa.metadata.namespace.as_deref(), target))
        }),
        scaled_object_targets: Referrers::of(&scaled_objects, |object| {
            object.target.as_ref().map(|target| identity(object.metadata.namespace.as_deref(), target))
        }),
        validities: Validities::default(),
        samples: Samples::default(),
        rates: Rates::default(),
        bodies: Bodies::new(collect::BODIES_AT_ONCE, collect::BODIES_OF_ONE_NAMESPACE),
        credentials: Credentials::new(process.secrets()),
        resources: Resources::default(),
        agents: Agents::new(process, &args.agents),
        counts: Counts::default(),
        configuration: Configuration::new(args),
        clock: process.clock(),
        writer: process.writer(&scalers),
        scales: process.scales(),
        recorder: process.recorder(),
        hpas: hpas.clone(),
        scaled_objects: scaled_objects.clone(),
        scalers,
    });
    forget_deleted(&ctx);
    metrics::export(process, &ctx.scalers, &ctx.counts);
    let of_target = |ctx: &Arc<Context>| {
        let ctx = Arc::clone(ctx);
        move |namespace: Option<&str>, target: &Reference| {
            ctx.scaler_targets.of_key(&identity(namespace, target))
        }
    };
    let (by_hpa, by_scaled_object) = (of_target(&ctx), of_target(&ctx));
    let (polled, polled_by_agents) = (Arc::clone(&ctx), Arc::clone(&ctx));
    let (period, agents) = (ctx.configuration.sample_period, ctx.agents.sources.clone());
    let controller = process
        .controller(&ctx.scalers)
        .maps(&ctx.deployments, keys_of_target(&ctx))
        .maps(&ctx.stateful_sets, keys_of_target(&ctx))
        .maps(&ctx.inferences, keys_of_target(&ctx))
        .maps(&ctx.dispatchers, keys_of_target(&ctx))
        .maps(&hpas, move |hpa| {
            hpa.target.iter().flat_map(|target| by_hpa(hpa.metadata.namespace.as_deref(), target)).collect()
        })
        .maps(&scaled_objects, move |object| {
            let namespace = object.metadata.namespace.as_deref();
            object.target.iter().flat_map(|target| by_scaled_object(namespace, target)).collect()
        })
        .polls(collect::polling(period), &Trigger::default(), move |scaler, now| {
            let ctx = Arc::clone(&polled);
            async move { collect::read(&ctx, &scaler, now).await }
        })
        .polls(agents::polling(period), &ctx.agents.trigger, move |scaler, now| {
            let ctx = Arc::clone(&polled_by_agents);
            async move { collect::read_agents(&ctx, &scaler, now).await }
        })
        .beside(move |_, stop| agents::run(agents, stop));
    process.control(controller, move |scaler, now| {
        let ctx = Arc::clone(&ctx);
        async move { reconcile(&ctx, scaler, now).await }
    })
}

/// Observes, validates, plans, applies.
async fn reconcile(ctx: &Context, scaler: Arc<AIScaler>, now: Timestamp) -> Result<Next, ApplyError> {
    let _forget = ForgetIfDeleted { ctx, scaler: &scaler };
    if scaler.metadata.deletion_timestamp.is_some() {
        // The replicas stay as they are.
        return Ok(Next::Done);
    }
    let observed = observe(ctx, &scaler, now);
    let period = ctx.configuration.period;
    let applied = match validate(&scaler, &ctx.configuration.allowed) {
        Err(invalid) => apply(ctx, &scaler, rejected(&invalid, &observed, now), now).await?,
        Ok(valid) => match apply(ctx, &scaler, plan(&valid, &observed, period, now), now).await? {
            Applied::Refused(refusal) => {
                apply(ctx, &scaler, refused(&refusal, &valid, &observed, period, now), now).await?
            }
            Applied::Failed { error, why } => {
                apply(ctx, &scaler, refused(&why, &valid, &observed, period, now), now).await?;
                return Err(error);
            }
            done @ (Applied::All { .. } | Applied::Outdated) => done,
        },
    };
    Ok(match applied {
        // Each reading of a source wakes its object; a look just before it would decide again on the values of the last one.
        Applied::All { requeue_after: Some(wait) } => Next::After(wait + wait / 2),
        Applied::Outdated => Next::After(period.min(OUTDATED_FOR)),
        // A plan of a refusal writes no replicas.
        Applied::All { requeue_after: None } | Applied::Refused(_) | Applied::Failed { .. } => Next::Done,
    })
}

/// The key under which references to one object are found.
fn identity(namespace: Option<&str>, target: &Reference) -> Key {
    Key::new(namespace.unwrap_or_default(), &target.identity())
}

/// The AIScalers of a target, and of what it owns: where the owner is scaled, they follow the owner.
fn keys_of_target<K>(ctx: &Arc<Context>) -> impl Fn(&Scalable<K>) -> Vec<Key> + Send + Sync + 'static
where
    K: kube::Resource<DynamicType = ()> + 'static,
{
    let ctx = Arc::clone(ctx);
    move |object| {
        let namespace = object.metadata.namespace.as_deref();
        let reference = Reference {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            name: object.metadata.name.clone().unwrap_or_default(),
        };
        let mut keys = ctx.scaler_targets.of_key(&identity(namespace, &reference));
        if let Some(uid) = &object.metadata.uid {
            for child in
                observe::deployments_of(&ctx, namespace.unwrap_or_default(), reference.watched(), uid)
            {
                keys.extend(ctx.scaler_targets.of_key(&identity(namespace, &child)));
            }
        }
        keys
    }
}

/// Held while something is recorded about an object. When dropped, removes all records if the object was deleted
/// meanwhile; [`forget_deleted`] has been called before.
pub(crate) struct ForgetIfDeleted<'c> {
    pub(crate) ctx: &'c Context,
    pub(crate) scaler: &'c AIScaler,
}

impl Drop for ForgetIfDeleted<'_> {
    fn drop(&mut self) {
        let Self { ctx, scaler } = self;
        let key = Key::of(*scaler);
        let uid = scaler.metadata.uid.as_deref();
        match ctx.scalers.get(&key) {
            None => ctx.forget(&key, uid.unwrap_or_default()),
            // The nodes that are kept by name are those of the new object, or will be with its first poll.
            Some(known) if known.metadata.uid.as_deref() != uid => ctx.forget_uid(uid.unwrap_or_default()),
            Some(_) => {}
        }
    }
}

impl Context {
    fn forget(&self, key: &Key, uid: &str) {
        self.forget_uid(uid);
        self.agents.forget(key);
    }

    fn forget_uid(&self, uid: &str) {
        self.validities.forget(uid);
        self.samples.forget(uid);
        self.rates.forget(uid);
    }
}

/// What is kept of an object goes with it.
fn forget_deleted(ctx: &Arc<Context>) {
    let kept = Arc::downgrade(ctx);
    ctx.scalers.subscribe(move |change| {
        let gone = change.gone().and_then(|gone| gone.metadata.uid.as_deref());
        if let (Some(uid), Some(ctx)) = (gone, kept.upgrade()) {
            ctx.forget(change.key, uid);
        }
    });
}
