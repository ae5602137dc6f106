-- What models cannot declare about tables. Unlike the other files it is run once, by the first
-- migration; a later change is a migration of its own.

-- Sums of tens of thousands of rows are done before helpers have started, though the planner thinks
-- otherwise: with them a year of a tenant with 15 % of all usage took 22 ms instead of 12, a chart of
-- hours 23 to 41 ms instead of 14 to 25.
ALTER TABLE tenants_usagerollup SET (parallel_workers = 0);
ALTER TABLE tenants_usagemonth SET (parallel_workers = 0);
ALTER TABLE tenants_usagetotal SET (parallel_workers = 0);

-- Tickets that were used. Unlogged: after a crash of the database one can be used again, for a minute.
CREATE UNLOGGED TABLE tenants_usedticket (
    id text PRIMARY KEY,
    used_at timestamptz NOT NULL DEFAULT now()
);

-- A rollout's revision is one of its own base model.
ALTER TABLE tenants_poolrevision ADD CONSTRAINT pool_revision_of UNIQUE (id, base_model_id);
ALTER TABLE tenants_rollout ADD CONSTRAINT rollout_of_its_model
    FOREIGN KEY (revision_id, base_model_id) REFERENCES tenants_poolrevision (id, base_model_id)
    DEFERRABLE INITIALLY DEFERRED;

-- A background response is deleted with its content.
ALTER TABLE tenants_backgroundresponse ADD CONSTRAINT background_of_content
    FOREIGN KEY (content_id) REFERENCES tenants_storedcontent (id) ON DELETE CASCADE;
