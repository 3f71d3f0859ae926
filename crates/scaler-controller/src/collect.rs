//! Reads the sources of one AIScaler. When it is called is decided by the runtime, and nothing about replicas is decided
//! here.

use std::{sync::Arc, time::Duration};

use api::aiscaler::{AIScaler, AIScalerSpec, MetricType, Source};
use futures::future::{OptionFuture, join, join_all};
use jiff::Timestamp;
use prometheus_api::{answer::Moment, args::Source as ServerSource};
use runtime::{
    key::Key,
    polling::{Polled, Polling},
};

use crate::{
    Context, ForgetIfDeleted,
    observe::{Target, observe, pods_of},
    plan::is_left_alone,
    samples::Question,
    sources::{
        Fault,
        agents::GpuReading,
        answer::{self, Answer},
    },
    target::other_kinds::{self, ScaleRead},
    validate::{MetricSource, PrometheusQuery, ValidScaler, validate},
};
use arrivals::with_arrivals;
use scrape::{pages, read_page};

pub(crate) mod agents;
pub(crate) mod arrivals;
pub(crate) mod rates;
mod scrape;

/// Pods of one target that are scraped at once.
const PODS_AT_ONCE: usize = 8;
/// All of them. It is less than the time of a whole reading, so that what has answered is kept.
const PODS_DEADLINE: Duration = Duration::from_secs(15);
/// Answers of pods that are read at once, for all objects together: each has up to 2 MiB, and is parsed without a wait once
/// it is complete. The controller may use 256 MiB.
pub(crate) const BODIES_AT_ONCE: usize = 16;
/// Of these, those of the pods of one namespace.
pub(crate) const BODIES_OF_ONE_NAMESPACE: usize = 4;
/// What the rates of counters are computed over.
const WINDOW: Duration = Duration::from_secs(30);

/// `period`: between two readings of one object. Of many slow servers, each with a deadline of 3 s, 64 are waited for at once.
pub(crate) fn polling(period: Duration) -> Polling {
    Polling { period, at_once: 64, deadline: Duration::from_secs(20), gap: Duration::from_secs(1) }
}

/// Between two readings of a metric of which is known what arrives. An HPA looks each 15 s; a burst is seen in a third of that.
pub(crate) fn arrivals_period(sample_period: Duration) -> Duration {
    /// Two looks within the time after which a rate begins anew.
    const LONGEST: Duration = Duration::from_secs(20);
    (sample_period / 3).min(LONGEST)
}

/// Reads every metric of one object but those of agents and those that `read_arrivals` reads, and the scale of a target that
/// is not watched. Of an object that gives way to another autoscaler, or is paused, no metric is read.
pub(crate) async fn read(ctx: &Context, scaler: &Arc<AIScaler>, now: Timestamp) -> Polled {
    let _forget = ForgetIfDeleted { ctx, scaler };
    let uid = scaler.metadata.uid.as_deref().unwrap_or_default();
    let Ok(valid) = validate(scaler, &ctx.configuration.allowed) else {
        ctx.rates.forget(uid);
        ctx.arrivals.forget(uid);
        return Polled::Changed;
    };
    // Other sources than before, or fewer, would leave what was scraped for those of before.
    ctx.rates.keep_only(uid, |index| matches!(valid.sources.get(index), Some(MetricSource::Pods { .. })));
    let is_read = valid.reference.watched().is_none();
    let is_found = matches!(
        &ctx.samples.of(uid).scale,
        Some((target, ScaleRead::Found { .. })) if *target == valid.reference
    );
    // The sources need its selector.
    if is_read && !is_found {
        read_scale(ctx, &valid, now).await;
    }
    if is_left_alone(&valid, &observe(ctx, scaler, now)) {
        ctx.samples.withhold(uid);
        ctx.rates.forget(uid);
        ctx.arrivals.forget(uid);
        if is_read && is_found {
            read_scale(ctx, &valid, now).await;
        }
        return if is_read { Polled::Changed } else { Polled::Unchanged };
    }
    let question = Question::of(&scaler.spec);
    let others = (0..valid.sources.len()).filter(|index| !valid.follows_arrivals(*index)).collect();
    read_each(ctx, scaler, &valid, &question, others, now).await;
    // After them, so that the version that a decision is written to is as new as it can be.
    if is_read && is_found {
        read_scale(ctx, &valid, now).await;
    }
    Polled::Changed
}

/// Reads the metrics of which is known what arrives: more often than others, because it is by them that a burst is seen.
pub(crate) async fn read_arrivals(ctx: &Context, scaler: &Arc<AIScaler>, now: Timestamp) -> Polled {
    if !may_follow_arrivals(&scaler.spec) {
        return Polled::Unchanged;
    }
    let _forget = ForgetIfDeleted { ctx, scaler };
    let Ok(valid) = validate(scaler, &ctx.configuration.allowed) else { return Polled::Unchanged };
    let followed: Vec<usize> =
        (0..valid.sources.len()).filter(|index| valid.follows_arrivals(*index)).collect();
    if followed.is_empty() {
        return Polled::Unchanged;
    }
    let observed = observe(ctx, scaler, now);
    // Without its scale, which the other reading brings, the target seems to have no pods.
    if matches!(observed.target, Target::Unread) || is_left_alone(&valid, &observed) {
        return Polled::Unchanged;
    }
    let question = Question::of(&scaler.spec);
    read_each(ctx, scaler, &valid, &question, followed, now).await;
    Polled::Changed
}

/// Reads the sources of these numbers. A slow source holds up no other.
async fn read_each(
    ctx: &Context,
    scaler: &AIScaler,
    valid: &ValidScaler,
    question: &Question,
    indices: Vec<usize>,
    now: Timestamp,
) {
    let noted = |index: usize, answer: Answer| {
        if let Some(source) = valid.sources.get(index) {
            ctx.counts.read(source, &answer);
            note(ctx, scaler, question, index, answer);
        }
    };
    let pages = pages(&valid.sources, &indices);
    let of_pages = pages.iter().map(async |page| {
        read_page(ctx, valid, page, now).await.into_iter().for_each(|(index, answer)| noted(index, answer));
    });
    let of_servers = indices.iter().map(async |index| {
        if let Some(answer) = of_server(ctx, valid, *index, now).await {
            noted(*index, answer);
        }
    });
    join(join_all(of_pages), join_all(of_servers)).await;
}

/// Unless the object asks something else by now: its other reading may have noted answers to that.
fn note(ctx: &Context, scaler: &AIScaler, question: &Question, index: usize, answer: Answer) {
    let uid = scaler.metadata.uid.as_deref().unwrap_or_default();
    let newest = ctx.scalers.get(&Key::of(scaler));
    if newest.is_none_or(|newest| Question::of(&newest.spec) == *question) {
        ctx.samples.note(uid, question, index, answer);
    }
}

/// Most objects need no closer look, several times a minute.
fn may_follow_arrivals(spec: &AIScalerSpec) -> bool {
    let is_counted = |kind: MetricType, source: &Option<Source>| match (kind, source) {
        (MetricType::QueueDepth, Some(source)) => {
            source.prometheus.as_ref().is_some_and(|server| server.completions_query.is_some())
        }
        (MetricType::QueueDepth | MetricType::Latency | MetricType::TokensPerMinute, None) => true,
        _ => false,
    };
    is_counted(spec.metric_type, &spec.source)
        || spec.additional_metrics.iter().any(|metric| is_counted(metric.metric_type, &metric.source))
}

async fn read_scale(ctx: &Context, valid: &ValidScaler, now: Timestamp) {
    let metadata = &valid.scaler.metadata;
    let (uid, namespace) =
        (metadata.uid.as_deref().unwrap_or_default(), metadata.namespace.as_deref().unwrap_or_default());
    let before = ctx.samples.of(uid).scale;
    let read = other_kinds::read(&ctx.scales, &ctx.resources, namespace, &valid.reference, now).await;
    ctx.samples.note_read_scale(uid, &valid.reference, read, before.as_ref());
}

/// Reads the metrics of one object that agents measure: out of memory, so that it may be called for each of their
/// snapshots.
pub(crate) async fn read_agents(ctx: &Context, scaler: &Arc<AIScaler>, now: Timestamp) -> Polled {
    let _forget = ForgetIfDeleted { ctx, scaler };
    let key = Key::of(&**scaler);
    let measured = |valid: &ValidScaler| -> Vec<(usize, GpuReading)> {
        let sources = valid.sources.iter().enumerate();
        sources.filter_map(|(index, source)| Some((index, source.of_agents()?))).collect()
    };
    let valid = validate(scaler, &ctx.configuration.allowed);
    let wanted = valid.as_ref().map(measured).unwrap_or_default();
    let is_read =
        |valid: &ValidScaler| !wanted.is_empty() && !is_left_alone(valid, &observe(ctx, scaler, now));
    let Some(valid) = valid.ok().filter(is_read) else {
        ctx.agents.forget(&key);
        return Polled::Unchanged;
    };
    ctx.agents.are_known().await;
    let pods = pods_of(ctx, &valid).into_iter().filter(|pod| pod.is_ready);
    let (polled, answers) = ctx.agents.read(&key, &wanted, &pods.collect::<Vec<_>>(), now);
    let (uid, question) = (scaler.metadata.uid.as_deref().unwrap_or_default(), Question::of(&scaler.spec));
    for (index, answer) in answers {
        if let Some(source) = valid.sources.get(index) {
            ctx.counts.read(source, &answer);
        }
        ctx.samples.note(uid, &question, index, answer);
    }
    polled
}

/// The answer for a metric that a Prometheus-compatible server has.
async fn of_server(ctx: &Context, valid: &ValidScaler, index: usize, now: Timestamp) -> Option<Answer> {
    let query = match valid.sources.get(index)? {
        MetricSource::Prometheus(query) => query,
        // See `read_page`, and `read_agents`.
        MetricSource::Pods { .. } | MetricSource::Agents(_) => return None,
    };
    let PrometheusQuery { url, secret, ca_secret, .. } = query;
    let source = ServerSource {
        namespace: valid.scaler.metadata.namespace.as_deref().unwrap_or_default(),
        url: url.as_deref(),
        secret: secret.as_deref(),
        ca_secret: ca_secret.as_deref(),
    };
    let asked = async |text| {
        let moment = Moment { now, wall: ctx.clock.wall() };
        let number = ctx.configuration.prometheus.number(source, text, moment).await;
        number.map_err(Fault::from)
    };
    let completions = query.completions.as_ref().filter(|_| valid.follows_arrivals(index));
    let completions = OptionFuture::from(completions.map(asked));
    let (total, completions) = join(asked(&query.query), completions).await;
    let answer = answer::of_total(total);
    Some(match completions {
        Some(completions) => with_arrivals(ctx, valid, index, query, answer, completions, now),
        None => answer,
    })
}
