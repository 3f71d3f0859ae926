//! The routes of one object as the state machine sees them: as one. Pure.
//!
//! `spec.gateway` has an HTTPRoute and, with `grpc`, a GRPCRoute; `spec.routeRef` has one of a user. Each is written
//! by itself, so between two writes they may differ. No step goes on then: each first gets what the state machine wants of
//! both.

use super::state::{Route, Share};

/// The routes that the object should have, whether they exist or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Routes {
    pub(super) http: Route,
    /// `None` where the spec or the cluster has none.
    pub(super) grpc: Option<Route>,
}

/// What each route is to give to the candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shares {
    pub(super) http: Share,
    pub(super) grpc: Share,
}

impl Routes {
    fn all(&self) -> impl Iterator<Item = Route> {
        [Some(self.http), self.grpc].into_iter().flatten()
    }

    /// The candidate has what any of them gives it. They are accepted when all are, and when all give the same.
    pub(super) fn as_one(&self) -> Route {
        let Route { share: of_http, is_foreign, .. } = self.http;
        Route {
            share: self.all().fold(of_http, |share, route| share.or(route.share)),
            is_unresolved: self.all().any(|route| route.is_unresolved),
            is_accepted: self.are_accepted() && self.all().all(|route| route.share == of_http),
            is_foreign,
        }
    }

    /// The gateways have accepted the last write of each.
    fn are_accepted(&self) -> bool {
        self.all().all(|route| route.is_accepted)
    }

    /// A share falls in each of them at once. It rises in one only after the last writes of all were accepted. That
    /// one must have named the Service with a weight of 0, and the gateways must have found it.
    pub(super) fn shares(&self, planned: Share) -> Shares {
        let may_rise = self.are_accepted() && !self.all().any(|route| route.is_unresolved);
        self.each(|route| match may_rise && route.share.is_known {
            true => planned,
            false => planned.at_most(route.share),
        })
    }

    /// No route gives the candidate more than it does now.
    pub(super) fn unraised(&self, planned: Share) -> Shares {
        self.each(|route| planned.at_most(route.share))
    }

    /// Whether one of them gives the candidate more than now.
    pub(super) fn rise_with(&self, shares: Shares) -> bool {
        let grpc = self.grpc.is_some_and(|route| shares.grpc.exceeds(route.share));
        shares.http.exceeds(self.http.share) || grpc
    }

    fn each(&self, share: impl Fn(Route) -> Share) -> Shares {
        Shares { http: share(self.http), grpc: self.grpc.map(share).unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(weight: i32, is_known: bool, is_accepted: bool) -> Route {
        let share = Share { weight, is_known, ..Share::default() };
        Route { share, is_accepted, ..Route::default() }
    }

    fn planned(weight: i32) -> Share {
        Share { weight, is_known: true, ..Share::default() }
    }

    fn weights(shares: Shares) -> (i32, i32) {
        (shares.http.weight, shares.grpc.weight)
    }

    /// At rest, the Service of the candidate of a user's route does not exist. Its gateway may see it late.
    #[test]
    fn no_share_rises_while_a_service_is_not_found() {
        let unresolved = |http| Routes { http: Route { is_unresolved: true, ..http }, grpc: None };
        let http = route(10, true, true);
        assert_eq!(weights(unresolved(http).shares(planned(50))).0, 10);
        assert_eq!(weights(unresolved(http).shares(planned(0))).0, 0, "it may fall");
        assert!(unresolved(http).as_one().is_accepted, "requests end by what was accepted");
    }

    #[test]
    fn two_routes_count_as_accepted_when_both_are_and_say_the_same() {
        let of = |http, grpc| Routes { http, grpc: Some(grpc) }.as_one();
        let one = of(route(10, true, true), route(10, true, true));
        assert_eq!(one, route(10, true, true));
        assert!(!of(route(10, true, true), route(10, true, false)).is_accepted);
        let differ = of(route(0, false, true), route(50, true, true));
        assert_eq!(
            differ,
            route(50, true, false),
            "what may be sent to the candidate is what any of them sends"
        );
        let alone = Routes { http: route(10, true, true), grpc: None };
        assert_eq!(alone.as_one(), route(10, true, true));
    }

    #[test]
    fn a_share_rises_only_after_both_were_accepted_and_falls_at_once() {
        let accepted = Routes { http: route(10, true, true), grpc: Some(route(10, true, true)) };
        assert_eq!(weights(accepted.shares(planned(50))), (50, 50));
        assert!(accepted.rise_with(accepted.shares(planned(50))));
        let open = Routes { grpc: Some(route(10, true, false)), ..accepted };
        assert_eq!(weights(open.shares(planned(50))), (10, 10), "also not in the route that was accepted");
        assert_eq!(weights(open.shares(planned(0))), (0, 0));
        assert!(!open.rise_with(open.shares(planned(50))));
        assert_eq!(weights(accepted.unraised(planned(50))), (10, 10));
    }

    #[test]
    fn a_route_that_comes_later_names_the_service_before_it_gets_the_share() {
        let new = Routes { http: route(50, true, true), grpc: Some(Route::default()) };
        let shares = new.shares(planned(50));
        assert_eq!((weights(shares), shares.grpc.is_known), ((50, 0), true));
        let named = Routes { grpc: Some(route(0, true, true)), ..new };
        assert_eq!(weights(named.shares(planned(50))), (50, 50));
        assert!(named.rise_with(named.shares(planned(50))), "an endpoint is asked for");
    }
}
