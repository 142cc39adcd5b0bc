"""Our tests of workload controllers hold for Kubernetes' own, too: what they promise is what users have there."""

from __future__ import annotations

import pytest

from tests.unit.builtin.test_collector import (  # noqa: F401
    test_a_new_object_of_the_owners_name_is_not_the_owner,
    test_an_object_with_a_living_owner_stays_and_loses_the_dead_reference,
    test_an_owner_of_an_unknown_kind_proves_nothing,
    test_dependants_follow_their_owner,
    test_foreground_waits_for_what_blocks,
    test_orphans_live_on,
    test_three_that_own_each_other_in_a_ring_go_together,
)
from tests.unit.builtin.test_jobs import (  # noqa: F401
    test_a_deleted_pod_is_replaced_and_counted_once,
    test_a_job_completes,
    test_a_job_takes_back_its_pod_and_lets_a_stranger_go,
    test_a_pod_failure_policy_ends_the_job_at_once,
    test_a_work_queue_ends_when_one_has_succeeded_and_the_rest_are_done,
    test_deleting_a_job_frees_its_pods,
    test_indexes,
    test_no_retries_means_the_first_failure_is_the_last,
    test_other_pods_are_removed_when_a_job_fails,
    test_parallel_completions,
    test_suspend_and_resume,
)
from tests.unit.builtin.test_sets import (  # noqa: F401
    test_a_budget_allows_as_many_evictions_as_it_can_spare,
    test_a_stateful_set_fills_in_order_and_empties_backwards,
    test_a_stateful_set_is_updated_from_the_last_to_the_first,
    test_a_stateful_set_makes_claims_and_leaves_them,
    test_endpoints_follow_pods,
)
from tests.unit.builtin.test_workloads import (  # noqa: F401
    test_a_deployment_rolls_from_one_template_to_the_next,
    test_a_deployment_takes_in_a_set_that_fits,
    test_a_replica_set_adopts_what_fits_and_releases_what_does_not,
    test_a_replica_set_counts_what_is_ready,
    test_a_replica_set_keeps_its_number,
    test_a_replication_controller_keeps_its_number,
    test_a_set_says_that_its_pods_are_refused_until_they_are_not,
    test_deleting_a_deployment_takes_sets_and_pods_along,
)

pytestmark = pytest.mark.controlplane
