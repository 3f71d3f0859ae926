//! The contract keeps what earlier versions of it have promised: a subscriber of an older release reads what a newer
//! source sends, and the other way round.
//!
//! `released/metrics.v1.binpb` is the contract of the last release. Before the first release it is the contract that the
//! first one will have. `src/generated/metrics.v1.binpb` replaces it at a release, and never in a change of the contract.

#![cfg(test)]

use std::collections::BTreeMap;

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};
use proto::metrics::v1::{FILE_DESCRIPTOR_SET, Metric, Unit};

const RELEASED: &[u8] = include_bytes!("../released/metrics.v1.binpb");

fn contract(set: &[u8]) -> FileDescriptorProto {
    let set = FileDescriptorSet::decode(set).unwrap();
    set.file.into_iter().find(|file| file.package() == "metrics.v1").expect("the contract")
}

/// What a reader or writer of the old contract would trip over.
fn breaks(old: &FileDescriptorProto, new: &FileDescriptorProto) -> Vec<String> {
    let mut found = Vec::new();
    for old in &old.message_type {
        match new.message_type.iter().find(|new| new.name() == old.name()) {
            Some(new) => breaks_of_message(old, new, &mut found),
            None => found.push(format!("message {} is gone", old.name())),
        }
    }
    for old in &old.enum_type {
        match new.enum_type.iter().find(|new| new.name() == old.name()) {
            Some(new) => breaks_of_enum(old, new, &mut found),
            None => found.push(format!("enum {} is gone", old.name())),
        }
    }
    for old in &old.service {
        match new.service.iter().find(|new| new.name() == old.name()) {
            Some(new) => breaks_of_service(old, new, &mut found),
            None => found.push(format!("service {} is gone", old.name())),
        }
    }
    found
}

fn breaks_of_message(old: &DescriptorProto, new: &DescriptorProto, found: &mut Vec<String>) {
    assert!(old.nested_type.is_empty() && old.enum_type.is_empty(), "nested types are not compared");
    let shape = |field: &FieldDescriptorProto| {
        (
            field.name().to_owned(),
            field.r#type(),
            field.label(),
            field.type_name().to_owned(),
            field.proto3_optional(),
            field.oneof_index,
        )
    };
    for old_field in &old.field {
        let number = old_field.number();
        let name = format!("{}.{}", old.name(), old_field.name());
        match new.field.iter().find(|field| field.number() == number) {
            Some(field) if shape(field) == shape(old_field) => {}
            Some(_) => found.push(format!("{name} is not what it was")),
            None => {
                let is_reserved =
                    new.reserved_range.iter().any(|range| (range.start()..range.end()).contains(&number))
                        && new.reserved_name.iter().any(|reserved| reserved == old_field.name());
                if !is_reserved {
                    found.push(format!("{name} is gone, and its number and name are not reserved"));
                }
            }
        }
    }
}

fn breaks_of_enum(old: &EnumDescriptorProto, new: &EnumDescriptorProto, found: &mut Vec<String>) {
    let values: BTreeMap<i32, &str> = new.value.iter().map(|value| (value.number(), value.name())).collect();
    for value in &old.value {
        let is_reserved =
            new.reserved_range.iter().any(|range| (range.start()..=range.end()).contains(&value.number()));
        match values.get(&value.number()) {
            Some(name) if *name == value.name() => {}
            None if is_reserved => {}
            _ => found.push(format!("{}.{} is not what it was", old.name(), value.name())),
        }
    }
}

fn breaks_of_service(old: &ServiceDescriptorProto, new: &ServiceDescriptorProto, found: &mut Vec<String>) {
    for method in &old.method {
        // Comments and options do not travel.
        if !new.method.iter().any(|other| {
            (
                other.name(),
                other.input_type(),
                other.output_type(),
                other.client_streaming(),
                other.server_streaming(),
            ) == (
                method.name(),
                method.input_type(),
                method.output_type(),
                method.client_streaming(),
                method.server_streaming(),
            )
        }) {
            found.push(format!("{}.{} is not what it was", old.name(), method.name()));
        }
    }
}

#[test]
fn everything_that_was_released_is_still_understood() {
    assert_eq!(breaks(&contract(RELEASED), &contract(FILE_DESCRIPTOR_SET)), [""; 0]);
}

#[test]
fn every_kind_of_break_is_found() {
    let old = contract(RELEASED);
    let after = |change: fn(&mut FileDescriptorProto)| {
        let mut new = old.clone();
        change(&mut new);
        breaks(&old, &new)
    };
    assert_eq!(after(|file| file.message_type[0].field[0].number = Some(77)).len(), 1);
    assert_eq!(after(|file| file.message_type[0].field[0].name = Some("other".to_owned())).len(), 1);
    assert_eq!(after(|file| file.message_type[1].field[1].r#type = Some(9)).len(), 1);
    assert_eq!(after(|file| drop(file.message_type.remove(0))).len(), 1);
    assert_eq!(after(|file| file.enum_type[0].value[1].number = Some(99)).len(), 1);
    assert_eq!(after(|file| drop(file.service[0].method.remove(0))).len(), 1);
    assert_eq!(after(|file| file.service[0].method[0].server_streaming = Some(false)).len(), 1);
    assert_eq!(after(|_| ()), [""; 0]);
}

#[test]
fn every_field_and_value_is_documented() {
    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let file = set.file.iter().find(|file| file.package() == "metrics.v1").unwrap();
    let source = file.source_code_info.as_ref().expect("comments");
    let documented: Vec<&[i32]> = source
        .location
        .iter()
        .filter(|location| !location.leading_comments().trim().is_empty())
        .map(|location| location.path.as_slice())
        .collect();
    // Numbers of fields of descriptors: 4 messages, 5 enums, 6 services; in them 2 are fields, values and methods.
    let mut wanted: Vec<(Vec<i32>, String)> = Vec::new();
    for (at, message) in (0..).zip(&file.message_type) {
        wanted.push((vec![4, at], message.name().to_owned()));
        for (of, field) in (0..).zip(&message.field) {
            wanted.push((vec![4, at, 2, of], format!("{}.{}", message.name(), field.name())));
        }
    }
    for (at, enumeration) in (0..).zip(&file.enum_type) {
        wanted.push((vec![5, at], enumeration.name().to_owned()));
        for (of, value) in (0..).zip(&enumeration.value) {
            wanted.push((vec![5, at, 2, of], value.name().to_owned()));
        }
    }
    for (at, service) in (0..).zip(&file.service) {
        wanted.push((vec![6, at], service.name().to_owned()));
        for (of, method) in (0..).zip(&service.method) {
            wanted.push((vec![6, at, 2, of], method.name().to_owned()));
        }
    }
    assert!(wanted.len() > 100, "{}", wanted.len());
    let silent = wanted.into_iter().filter(|(path, _)| !documented.contains(&path.as_slice()));
    assert_eq!(silent.map(|(_, name)| name).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn every_metric_has_a_unit_and_a_name_that_leads_back_to_it() {
    let metrics: Vec<Metric> = (1..200).filter_map(|number| Metric::try_from(number).ok()).collect();
    assert!(metrics.len() >= 25, "{metrics:?}");
    for metric in metrics {
        assert_ne!(metric.unit(), Unit::Unspecified, "{metric:?}");
        assert_eq!(Metric::from_name(&metric.name()), Some(metric));
    }
}
